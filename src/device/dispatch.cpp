// libtorch's operators on the virtual devices. Eleven of them, which make or move memory, are written here; all others take one fallback:
// the CPU's kernel over the same memory (emulated), or the Meta kernel or a shape rule (counting).
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>
#include <mutex>
#include <unordered_map>

#include "device/memory.h"
#include "device/operation_cost.h"
#include "device/shape_rules.h"
#include "device/state.h"
#include "device/trace_writer.h"

namespace ingot::device {
namespace {

using Stack = torch::jit::Stack;
using Access = Trace::HostAccess::Kind;

// Integer tensors up to this size keep their contents when the host copies them to a counting device: row counts, orders of rows.
constexpr int64_t kKeptContents = 1 << 16;

bool is_ours(const at::Tensor& tensor) { return tensor.defined() && is_virtual(tensor.device()); }

// An operator, looked at once.
struct OperatorFacts {
  std::string name;       // "aten::mm": overload and the underscore of in-place variants left out
  std::string full_name;  // "aten::mm.out"
  bool has_meta = false, waits = false;
  ShapeRule rule = nullptr;
  std::vector<bool> is_written, is_out;  // by argument

  explicit OperatorFacts(const c10::OperatorHandle& op) {
    const auto& of = op.operator_name();
    full_name = of.overload_name.empty() ? of.name : of.name + "." + of.overload_name;
    name = of.name;
    if (name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_') name.pop_back();
    waits = waits_for_device(name, of.overload_name);
    rule = shape_rule(full_name);
    for (const auto key : {c10::DispatchKey::Meta, c10::DispatchKey::CompositeExplicitAutograd,
                           c10::DispatchKey::CompositeExplicitAutogradNonFunctional, c10::DispatchKey::CompositeImplicitAutograd})
      has_meta = has_meta || op.hasKernelForDispatchKey(key);
    for (const auto& argument : op.schema().arguments()) {
      is_written.push_back(argument.alias_info() && argument.alias_info()->isWrite());
      is_out.push_back(argument.is_out());
    }
  }
};

const OperatorFacts& facts_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OperatorFacts>> known;
  auto& facts = known[&op.schema()];
  if (!facts) facts = std::make_unique<OperatorFacts>(op);
  return *facts;
}

// visit(tensor) for every tensor in an argument or result.
template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
      if (tensor) visit(*tensor);
  }
}

// The tensors of one call and their shadows: the host's (emulated) or Meta's (counting).
class Shadows {
 public:
  explicit Shadows(at::Device device) : device_(device), key_(is_counting(device) ? c10::DispatchKey::Meta : c10::DispatchKey::CPU) {}

  c10::IValue of(const c10::IValue& value, bool is_written) {
    if (value.isTensor()) return is_ours(value.toTensor()) ? c10::IValue(shadow(value.toTensor(), is_written)) : value;
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorList()) list.push_back(is_ours(tensor) ? shadow(tensor, is_written) : tensor);
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
        list.push_back(tensor && is_ours(*tensor) ? std::optional(shadow(*tensor, is_written)) : tensor);
      return list;
    }
    if (value.isDevice() && is_virtual(value.toDevice())) return at::Device(is_counting(device_) ? at::kMeta : at::kCPU);
    return value;
  }

  // Kernels may give what they write another shape.
  void write_back() {
    for (auto& [ours, shadow, is_written] : pairs_) {
      if (!is_written || (ours.sizes() == shadow.sizes() && ours.strides() == shadow.strides())) continue;
      const auto bytes = at::detail::computeStorageNbytes(shadow.sizes(), shadow.strides(), shadow.dtype().itemsize(),
                                                          static_cast<size_t>(shadow.storage_offset()));
      auto* storage = ours.storage().unsafeGetStorageImpl();
      if (bytes > storage->nbytes()) {
        storage->set_data_ptr_noswap(virtual_allocator()->allocate(bytes));
        storage->set_nbytes(bytes);
      }
      ours.unsafeGetTensorImpl()->set_sizes_and_strides(shadow.sizes(), shadow.strides());
      if (!is_counting(device_) && shadow.numel() > 0) shadow_of(ours).copy_(shadow);
    }
  }

  c10::IValue back(const c10::IValue& value) {
    if (value.isTensor()) return ours(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) list.push_back(ours(tensor));
    return list;
  }

 private:
  struct Pair {
    at::Tensor ours, shadow;
    bool is_written;
  };

  at::Tensor shadow(const at::Tensor& tensor, bool is_written) {
    const c10::Storage* storage = nullptr;
    for (auto& pair : pairs_) {
      if (pair.ours.is_same(tensor)) {
        pair.is_written = pair.is_written || is_written;
        return pair.shadow;
      }
      if (pair.ours.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl()) storage = &pair.shadow.storage();
    }
    auto made = tensor_over(storage ? *storage : shadow_of(tensor.storage(), device_), key_, tensor);
    pairs_.push_back({tensor, made, is_written});
    return made;
  }

  at::Tensor ours(const at::Tensor& result) {
    if (!result.defined() || is_ours(result)) return result;
    for (const auto& pair : pairs_)
      if (pair.shadow.is_same(result)) return pair.ours;
    for (const auto& pair : pairs_)
      if (result.has_storage() && pair.shadow.storage().unsafeGetStorageImpl() == result.storage().unsafeGetStorageImpl())
        return tensor_over(pair.ours.storage(), c10::DispatchKey::PrivateUse1, result);
    const at::Tensor made = at::detail::empty_strided_generic(result.sizes(), result.strides(), virtual_allocator(),
                                                              c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), result.scalar_type());
    if (!is_counting(device_) && result.numel() > 0) shadow_of(made).copy_(result);
    return made;
  }

  at::Device device_;
  c10::DispatchKey key_;
  c10::SmallVector<Pair, 8> pairs_;
};

at::Device device_of(at::ArrayRef<c10::IValue> arguments) {
  std::optional<at::Device> found;
  for (const auto& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (!found && is_ours(tensor)) found = tensor.device();
    });
    if (!found && argument.isDevice() && is_virtual(argument.toDevice())) found = argument.toDevice();
  }
  if (!found || !found->has_index()) return {kVirtual, current_index()};
  return *found;
}

// As on CUDA: single numbers of the host may stand beside tensors of the device, and index tensors (which are copied there).
void refuse_host_tensors(const OperatorFacts& facts, at::Device device, at::ArrayRef<c10::IValue> arguments) {
  for (const auto& argument : arguments) {
    if (argument.isOptionalTensorList()) continue;
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      const bool is_number = tensor.defined() && tensor.device().is_cpu() && tensor.dim() == 0;
      TORCH_CHECK(!tensor.defined() || is_number || tensor.device() == device, facts.full_name,
                  ": expected all tensors to be on the same device, but one of shape ", tensor.sizes(), " is on ", tensor.device(),
                  " and others are on ", device);
    });
  }
}

// Shapes without Meta kernel or rule: an operation that writes into its arguments leaves their shapes alone.
void guess(const c10::OperatorHandle& op, const OperatorFacts& facts, at::Device device, Stack& arguments) {
  Stack results;
  bool has_shape = true;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (facts.is_written[i] && arguments[i].isTensor()) {
      has_shape = has_shape && !(facts.is_out[i] && arguments[i].toTensor().numel() == 0);
      results.push_back(arguments[i]);
    }
  TORCH_CHECK_NOT_IMPLEMENTED(
      has_shape && !results.empty() && results.size() == op.schema().returns().size(), facts.full_name,
      " has no shape on a counting device: libtorch has no Meta kernel in C++; device/shape_rules.cpp is where a rule for it goes");
  if (const auto writer = state_of(device).writer) writer->guessed(facts.full_name);
  arguments = std::move(results);
}

void record(const OperatorFacts& facts, at::Device device, at::ArrayRef<c10::IValue> arguments, at::ArrayRef<c10::IValue> results) {
  const auto writer = state_of(device).writer;
  if (!writer) return;
  c10::SmallVector<at::Tensor, 8> inputs, outputs;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (!facts.is_out[i]) for_each_tensor(arguments[i], [&](const at::Tensor& tensor) { inputs.push_back(tensor); });
  for (const auto& result : results) for_each_tensor(result, [&](const at::Tensor& tensor) { outputs.push_back(tensor); });
  writer->operation(facts.name.c_str(), inputs, outputs, flops_of(facts.name, arguments));
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const auto& facts = facts_of(op);
  const size_t count = op.schema().arguments().size();
  Stack arguments(std::make_move_iterator(stack->end() - static_cast<std::ptrdiff_t>(count)), std::make_move_iterator(stack->end()));
  stack->resize(stack->size() - count);

  const auto device = device_of(arguments);
  const c10::DeviceGuard guard(device);
  refuse_host_tensors(facts, device, arguments);
  if (facts.waits)
    if (const auto writer = state_of(device).writer) writer->host_access(Access::read, facts.name.c_str(), 0);

  Stack results;
  if (is_counting(device) && facts.rule) {
    results = arguments;
    facts.rule(results);
  } else if (is_counting(device) && !facts.has_meta) {
    results = arguments;
    guess(op, facts, device, results);
  } else {
    Shadows shadows(device);
    for (size_t i = 0; i < count; ++i) results.push_back(shadows.of(arguments[i], facts.is_written[i]));
    op.callBoxed(results);
    shadows.write_back();
    for (auto& result : results) result = shadows.back(result);
  }
  if (is_counting(device))
    for (size_t i = 0; i < count; ++i)
      if (facts.is_written[i]) for_each_tensor(arguments[i], [](const at::Tensor& tensor) { forget_contents(tensor); });
  record(facts, device, arguments, results);
  for (auto& result : results) stack->push_back(std::move(result));
}

// ---- operators that make memory, look at it from another side, or move it ----

at::Tensor empty_memory_format(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                               std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, virtual_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, virtual_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
at::Tensor view(const at::Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); }
at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

void grow(c10::StorageImpl* storage, size_t bytes) {
  const c10::DeviceGuard guard(storage->device());
  auto larger = virtual_allocator()->allocate(bytes);
  if (storage->nbytes() > 0) virtual_allocator()->copy_data(larger.get(), storage->data(), std::min(bytes, storage->nbytes()));
  storage->set_data_ptr_noswap(std::move(larger));
  storage->set_nbytes(bytes);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const size_t bytes = static_cast<size_t>(impl->numel() + impl->storage_offset()) * self.dtype().itemsize();
  if (bytes > self.storage().nbytes()) grow(self.storage().unsafeGetStorageImpl(), bytes);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(size, stride.empty() ? at::IntArrayRef(c10::contiguous_strides(size)) : stride);
  return self;
}

// What a counting device knows of values passes on: from the host to it, within it, and back.
void copy_contents(const at::Tensor& self, const at::Tensor& source) {
  const auto known = is_ours(source) ? contents_of(source) : std::optional<at::Tensor>();
  if (!is_ours(self)) {
    if (known) self.copy_(*known);
    else self.zero_();
  } else if (is_ours(source)) {
    forget_contents(self);
    if (known && self.is_contiguous() && self.numel() == source.numel()) declare_contents(self, known->to(self.scalar_type()));
  } else {
    const bool is_kept = at::isIntegralType(source.scalar_type(), false) && self.numel() <= kKeptContents && self.is_contiguous() &&
                         self.numel() == source.numel();
    is_kept ? declare_contents(self, source.contiguous().to(self.scalar_type())) : forget_contents(self);
  }
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool) {
  if (self.is_same(source)) return self;
  TORCH_CHECK(at::is_expandable_to(source.sizes(), self.sizes()), "copy_: a tensor of shape ", source.sizes(),
              " does not fit one of shape ", self.sizes());
  const at::Device device = is_ours(self) ? self.device() : source.device();
  const c10::DeviceGuard guard(device);
  if (const auto writer = state_of(device).writer) {
    if (is_ours(self) && is_ours(source)) writer->operation("aten::copy", {source}, {self}, 0);
    else
      writer->host_access(is_ours(self) ? Access::copy_to_device : Access::copy_to_host,
                          is_ours(self) ? "copy to the device" : "copy to the host", static_cast<int64_t>(source.nbytes()));
  }
  if (is_counting(device)) {
    copy_contents(self, source);
    return self;
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  auto to = is_ours(self) ? shadow_of(self) : self;
  to.copy_(is_ours(source) ? shadow_of(source) : source);
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  auto out = to;
  return copy(out, self, non_blocking);
}
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

at::Scalar item(const at::Tensor& self) {
  if (const auto writer = state_of(self.device()).writer)
    writer->host_access(Access::read, "item", static_cast<int64_t>(self.element_size()));
  if (is_emulated(self.device())) return host_view(self).item();
  if (const auto known = contents_of(self)) return known->item();
  if (at::isFloatingType(self.scalar_type())) return 1.0;
  return self.scalar_type() == at::kBool ? at::Scalar(true) : at::Scalar(int64_t{1});
}

// A composite kernel comes before the fallback; an operator for which the CPU has a kernel of its own should take that one's way.
// Structured operators keep their composite: it allocates the result here and calls the out variant.
bool takes_composite(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  if (!op.hasKernelForDispatchKey(DispatchKey::CPU) || op.hasKernelForDispatchKey(DispatchKey::PrivateUse1)) return false;
  return op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
         (op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
          !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional));
}

void register_all() {
  c10::register_privateuse1_backend("virtual");
  static torch::Library others(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  others.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  aten.impl("empty.memory_format", TORCH_FN(empty_memory_format));
  aten.impl("empty_strided", TORCH_FN(empty_strided));
  aten.impl("as_strided", TORCH_FN(as_strided));
  aten.impl("view", TORCH_FN(view));
  aten.impl("_reshape_alias", TORCH_FN(reshape_alias));
  aten.impl("resize_", TORCH_FN(resize));
  aten.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  aten.impl("copy_", TORCH_FN(copy));
  aten.impl("_copy_from", TORCH_FN(copy_from));
  aten.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  aten.impl("_local_scalar_dense", TORCH_FN(item));
  auto& dispatcher = c10::Dispatcher::singleton();
  constexpr size_t kPrefix = 6;  // "aten::"
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || !takes_composite(*op)) continue;
    const auto short_name = name.name.substr(kPrefix) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    aten.impl(short_name.c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

}  // namespace

void register_operators() {
  static std::once_flag once;
  std::call_once(once, &register_all);
}

void grow_storage(const c10::Storage& storage, size_t bytes) { grow(storage.unsafeGetStorageImpl(), bytes); }

}  // namespace ingot::device
