// Linear attention with all its gradients against a recorded per-token recurrence (docs/verify.md says what a file holds).
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "device/device.h"
#include "kernels/linear_attention.h"
#include "layers/dtype.h"
#include "verify/operators.h"

namespace ingot::verify {
namespace {

using base::ModelError;

// What a variant has besides q, k and v.
struct Extras {
  const char* gate;  // tensor of the file, or null
  int64_t gate_dims;
  bool has_beta;
};
const std::map<std::string, Extras> kVariants = {{"basic", {nullptr, 0, false}},
                                                 {"retention", {"in.slope", 1, false}},
                                                 {"scalar_gate", {"in.log_gate", 3, false}},
                                                 {"diagonal_gate", {"in.log_gate", 4, false}},
                                                 {"delta", {nullptr, 0, true}},
                                                 {"gated_delta", {"in.log_gate", 3, true}},
                                                 {"kda", {"in.log_gate", 4, true}}};

const Extras& extras_of(const Fixture& fixture) {
  const auto options = fixture.note("options");
  const auto variant = options.find("variant");
  std::vector<std::string> known;
  for (const auto& [name, extras] : kVariants) known.push_back(name);
  if (variant == options.end() || !variant->is_string())
    throw ModelError("the options of the reference name no variant; it is one of {}", base::join(known, ", "));
  const auto found = kVariants.find(variant->get<std::string>());
  if (found == kVariants.end())
    throw ModelError("the reference is of the variant '{}'; known are {}{}", variant->get<std::string>(), base::join(known, ", "),
                     base::did_you_mean(variant->get<std::string>(), known));
  return found->second;
}

at::Tensor floats(const Fixture& fixture, const std::string& name, int64_t dims) {
  auto x = fixture.tensor(name);
  if (!x.is_floating_point() || x.dim() != dims)
    throw ModelError("{} must be a floating point tensor of {} dims, it is {} of {}", name, dims, c10::toString(x.scalar_type()), x.dim());
  return x;
}

// bool [batch, seq] from positions that hold for every row.
at::Tensor is_start(const Fixture& fixture, const at::Tensor& q) {
  const auto positions = fixture.tensor("in.document_starts");
  const int64_t seq = q.size(1);
  if (positions.scalar_type() != at::kLong || positions.dim() != 1)
    throw ModelError("in.document_starts must be a list of 64-bit integers");
  auto starts = at::zeros({q.size(0), seq}, at::kBool);
  for (int64_t i = 0; i < positions.numel(); ++i) {
    const int64_t at = positions[i].item<int64_t>();
    if (at < 0 || at >= seq) throw ModelError("in.document_starts has {}; tokens are 0 to {}", at, seq - 1);
    starts.select(1, at).fill_(true);
  }
  return starts;
}

}  // namespace

Report verify_linear_attention(const Fixture& fixture, const Options& options) {
  const Extras& extras = extras_of(fixture);
  const auto dtype = layers::precision_named(options.dtype).dtype;
  const auto wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const at::Device device = device::device_named(options.device);
  const auto operand = [&](const char* name, int64_t dims, at::ScalarType type) { return floats(fixture, name, dims).to(device, type); };

  kernels::LinearAttentionInputs in{operand("in.q", 4, dtype), operand("in.k", 4, dtype), operand("in.v", 4, dtype), {}, {}, {}};
  if (extras.gate != nullptr) in.log_gate = operand(extras.gate, extras.gate_dims, wide);
  if (in.log_gate.defined() && in.log_gate.dim() == 1) in.log_gate = -in.log_gate;  // a slope
  if (extras.has_beta) in.beta = operand("in.beta", 3, wide);
  if (fixture.has("in.document_starts")) in.is_start = is_start(fixture, in.q).to(device);
  const auto state = fixture.has("in.initial_state") ? operand("in.initial_state", 4, wide) : at::Tensor();
  const auto grad_out = operand("grad_out.o", 4, dtype);
  const auto grad_state = fixture.has("grad_out.final_state") ? operand("grad_out.final_state", 4, wide) : at::Tensor();

  const auto forward = kernels::linear_attention_forward(in, state);
  const auto grads = kernels::linear_attention_backward(grad_out, grad_state, in, state, forward.saved);
  const std::map<std::string, at::Tensor> got = {{"out.o", forward.out},       {"out.final_state", forward.final_state},
                                                 {"grad.in.q", grads.q},       {"grad.in.k", grads.k},
                                                 {"grad.in.v", grads.v},       {"grad.in.log_gate", grads.log_gate},
                                                 {"grad.in.beta", grads.beta}, {"grad.in.initial_state", grads.initial_state}};
  Report report;
  for (const auto& name : fixture.names()) {
    if (name.starts_with("in.") || name.starts_with("grad_out.")) continue;
    const auto found = got.find(name);
    if (found == got.end() || !found->second.defined())
      throw ModelError("the reference holds '{}', which this variant does not have", name);
    report.comparisons.push_back(compare(name, found->second, fixture.tensor(name), operator_tolerance(options)));
  }
  if (!fixture.has("out.o")) throw ModelError("the reference holds no output (out.o is missing)");
  return report;
}

}  // namespace ingot::verify
