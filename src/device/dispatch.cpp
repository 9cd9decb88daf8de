// libtorch's operators on the virtual devices. Twelve of them, which make or move memory, are written here; all others take one fallback
// (fallback.h).
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <mutex>

#include "device/fallback.h"
#include "device/memory.h"
#include "device/operator_facts.h"
#include "device/state.h"
#include "device/stream.h"
#include "device/trace_writer.h"

namespace ingot::device {
namespace {

using Access = Trace::HostAccess::Kind;

// Integer tensors up to this size keep their contents when the host copies them to a counting device: row counts, orders of rows.
constexpr int64_t kKeptContents = 1 << 16;

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
  if (storage->nbytes() > 0 && is_emulated(storage->device())) run_until(end_of(current_stream(storage->device())));
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

// As on CUDA, the host waits unless it says that it need not: then it may not touch its tensor before it has synchronised.
void copy_emulated(const at::Tensor& self, const at::Tensor& source, at::Device device, bool non_blocking) {
  const auto shadow = [](const at::Tensor& tensor) { return is_ours(tensor) ? shadow_of(tensor, c10::DispatchKey::CPU) : tensor; };
  const auto job = [to = shadow(self), from = shadow(source)] {
    const at::AutoDispatchBelowADInplaceOrView below;
    to.copy_(from);
  };
  const bool is_within = is_ours(self) && is_ours(source) && self.device() == source.device();
  if (is_within || (non_blocking && !(is_ours(self) && is_ours(source)))) return enqueue(current_stream(device), job);
  for (const auto* tensor : {&self, &source})
    if (is_ours(*tensor)) run_until(end_of(current_stream(tensor->device())));
  job();
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source)) return self;
  TORCH_CHECK(at::is_expandable_to(source.sizes(), self.sizes()), "copy_: a tensor of shape ", source.sizes(),
              " does not fit one of shape ", self.sizes());
  const at::Device device = is_ours(self) ? self.device() : source.device();
  const c10::DeviceGuard guard(device);
  if (const auto writer = state_of(device).writer) {
    if (is_ours(self) && is_ours(source)) writer->operation("aten::copy", {source}, {self}, 0);
    else
      writer->host_access(is_ours(self) ? Access::copy_to_device : Access::copy_to_host,
                          is_ours(self) ? "copy to the device" : "copy to the host", static_cast<int64_t>(source.nbytes()), !non_blocking);
  }
  is_counting(device) ? copy_contents(self, source) : copy_emulated(self, source, device, non_blocking);
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

void record_stream(at::Tensor& self, at::Stream stream) { record_use(self.storage().data_ptr(), stream); }

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
  aten.impl("record_stream", TORCH_FN(record_stream));
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
