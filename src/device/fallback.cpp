#include "device/fallback.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>

#include "device/memory.h"
#include "device/operation_cost.h"
#include "device/operator_facts.h"
#include "device/shadows.h"
#include "device/state.h"
#include "device/stream.h"
#include "device/trace_writer.h"

namespace ingot::device {
namespace {

using Stack = torch::jit::Stack;
using Access = Trace::HostAccess::Kind;

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

// The kernel of another dispatch key, over shadows.
Stack call(const c10::OperatorHandle& op, const OperatorFacts& facts, at::Device device, c10::DispatchKey key, const Stack& arguments) {
  Shadows shadows(device, key);
  Stack results;
  for (size_t i = 0; i < arguments.size(); ++i) results.push_back(shadows.of(arguments[i], facts.is_written[i]));
  op.callBoxed(results);
  shadows.write_back();
  for (auto& result : results) result = shadows.back(result);
  return results;
}

// Results without contents.
Stack infer(const c10::OperatorHandle& op, const OperatorFacts& facts, at::Device device, const Stack& arguments) {
  if (!facts.rule) return call(op, facts, device, c10::DispatchKey::Meta, arguments);
  auto results = arguments;
  facts.rule(results);
  return results;
}

// An argument as a deferred kernel will see it. A number of the host is as it is now.
c10::IValue kept(Shadows& shadows, const c10::IValue& argument) {
  const auto as_it_is = [](const at::Tensor& tensor) {
    const bool is_host = tensor.defined() && !is_ours(tensor) && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
    return is_host ? tensor.clone() : tensor;
  };
  if (argument.isTensor() && !is_ours(argument.toTensor())) return as_it_is(argument.toTensor());
  if (argument.isOptionalTensorList()) {  // indices
    c10::List<std::optional<at::Tensor>> list;
    for (std::optional<at::Tensor> tensor : argument.toOptionalTensorList()) {
      if (tensor) tensor = as_it_is(*tensor);
      list.push_back(std::move(tensor));
    }
    return shadows.of(list, false);
  }
  return shadows.of(argument, false);
}

// What a kernel gives back into the memory that was allocated for it; undefined tensors stand for what it writes itself.
void store(const c10::OperatorHandle& op, const Stack& results, const std::vector<at::Tensor>& outputs) {
  size_t at = 0;
  for (const auto& result : results)
    for_each_tensor(result, [&](const at::Tensor& made) {
      const auto& output = outputs[at++];
      if (!output.defined()) return;
      // Of other strides the next kernel could add up in another order.
      TORCH_CHECK(made.defined() && made.sizes() == output.sizes() && made.scalar_type() == output.scalar_type() &&
                      made.is_contiguous() == output.is_contiguous(),
                  op.operator_name(), " was inferred to be ", output.toString(), output.sizes(), output.strides(), " and is ",
                  made.toString(), made.defined() ? made.sizes() : at::IntArrayRef(), made.defined() ? made.strides() : at::IntArrayRef());
      output.copy_(made);
    });
}

void defer(const c10::OperatorHandle& op, const OperatorFacts& facts, at::Device device, const Stack& arguments, const Stack& results) {
  const auto is_argument = [&](const at::Tensor& tensor) {
    bool found = false;
    for (const auto& argument : arguments)
      for_each_tensor(argument, [&](const at::Tensor& other) {
        found = found || (is_ours(other) && other.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl());
      });
    return found;
  };
  std::vector<at::Tensor> outputs;
  bool computes = std::find(facts.is_written.begin(), facts.is_written.end(), true) != facts.is_written.end();
  for (const auto& result : results)
    for_each_tensor(result, [&](const at::Tensor& tensor) {
      const bool is_new = is_ours(tensor) && tensor.numel() > 0 && !is_argument(tensor);
      outputs.push_back(is_new ? shadow_of(tensor, c10::DispatchKey::CPU) : at::Tensor());
      computes = computes || is_new;
    });
  if (!computes) return;  // a view
  Shadows shadows(device, c10::DispatchKey::CPU);
  Stack inputs;
  for (const auto& argument : arguments) inputs.push_back(kept(shadows, argument));
  enqueue(current_stream(device), [op, inputs = std::move(inputs), outputs = std::move(outputs)] {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto stack = inputs;
    op.callBoxed(stack);
    store(op, stack, outputs);
  });
}

Stack emulate(const c10::OperatorHandle& op, const OperatorFacts& facts, at::Device device, const Stack& arguments) {
  get_on(current_stream(device));
  if (facts.can_wait) {
    std::optional<Stack> results;
    try {
      results = infer(op, facts, device, arguments);
    } catch (const c10::Error&) {  // it looks at data, or is wrong: the CPU's kernel will say
    }
    if (results) {
      defer(op, facts, device, arguments, *results);
      return *results;
    }
  }
  run_until(end_of(current_stream(device)));
  return call(op, facts, device, c10::DispatchKey::CPU, arguments);
}

Stack count(const c10::OperatorHandle& op, const OperatorFacts& facts, at::Device device, const Stack& arguments) {
  Stack results;
  if (facts.rule || facts.has_meta) {
    results = infer(op, facts, device, arguments);
  } else {
    results = arguments;
    guess(op, facts, device, results);
  }
  for (size_t i = 0; i < arguments.size(); ++i)
    if (facts.is_written[i]) for_each_tensor(arguments[i], [](const at::Tensor& tensor) { forget_contents(tensor); });
  return results;
}

}  // namespace

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const auto& facts = facts_of(op);
  const size_t count_of = op.schema().arguments().size();
  const Stack arguments(std::make_move_iterator(stack->end() - static_cast<std::ptrdiff_t>(count_of)),
                        std::make_move_iterator(stack->end()));
  stack->resize(stack->size() - count_of);

  const auto device = device_of(arguments);
  const c10::DeviceGuard guard(device);
  refuse_host_tensors(facts, device, arguments);
  if (facts.waits)
    if (const auto writer = state_of(device).writer) writer->host_access(Access::read, facts.name.c_str(), 0);

  auto results = is_counting(device) ? count(op, facts, device, arguments) : emulate(op, facts, device, arguments);
  record(facts, device, arguments, results);
  for (auto& result : results) stack->push_back(std::move(result));
}

}  // namespace ingot::device
