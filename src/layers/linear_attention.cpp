#include "layers/linear_attention.h"

#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "base/work_scope.h"
#include "kernels/norm.h"
#include "kernels/short_convolution.h"
#include "layers/autograd.h"
#include "layers/linear.h"

namespace ingot::layers {
namespace {

constexpr double kGateTemperature = 16;  // GLA (Yang et al. 2024, arXiv 2312.06635): most gates begin close to 1

// Saves its inputs; states inside a sequence are made again from the few that the kernel saves.
struct LinearAttentionFunction : Function<LinearAttentionFunction, WorkKind::linear_attention> {
  static at::Tensor forward(Context& context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_gate,
                            const at::Tensor& beta, const at::Tensor& is_start) {
    const auto result = kernels::linear_attention_forward({q, k, v, log_gate, beta, is_start});
    context.save({q, k, v, log_gate, beta, is_start, result.saved});
    return result.out;
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto s = context.saved();
    const auto g = kernels::linear_attention_backward(grads[0], {}, {s[0], s[1], s[2], s[3], s[4], s[5]}, {}, s[6]);
    return {g.q, g.k, g.v, g.log_gate, g.beta};
  }
};

at::Tensor wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }

}  // namespace

const std::vector<std::string>& linear_variant_names() {
  static const std::vector<std::string> names = {"basic", "retention",   "scalar_gate", "diagonal_gate",
                                                 "delta", "gated_delta", "kda",         "retnet"};
  return names;
}

LinearVariant linear_variant_from_name(const std::string& name) {
  const auto& names = linear_variant_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    throw base::ConfigError("unknown linear attention '{}'; known are {}{}", name, base::join(names, ", "),
                            base::did_you_mean(name, names));
  return static_cast<LinearVariant>(found - names.begin());
}

at::Tensor linear_attention(const kernels::LinearAttentionInputs& in, Sequences& sequences, const Caches<at::Tensor>& states) {
  if (sequences.sees_both_ways())
    return sequences.context() ? sequences.context()->bidirectional_linear_attention(in.q, in.k, in.v, sequences)
                               : kernels::bidirectional_linear_attention(in.q, in.k, in.v, in.is_start);
  if (const auto& context = sequences.context()) return context->linear_attention(in, sequences);
  if (!states) return LinearAttentionFunction::apply(in.q, in.k, in.v, in.log_gate, in.beta, in.is_start);
  return by_part(sequences, states, {in.q, in.k, in.v, in.log_gate, in.beta},
                 [](Sequences& part, at::Tensor* state, const std::vector<at::Tensor>& own) {
                   const kernels::LinearAttentionInputs inputs{own[0], own[1], own[2], own[3], own[4], part.is_start()};
                   if (own[0].size(1) == 1) return kernels::linear_attention_step(inputs, *state);
                   const auto result = kernels::linear_attention_forward(inputs, *state);
                   *state = result.final_state;
                   return result.out;
                 });
}

at::Tensor short_convolution(const at::Tensor& x, const at::Tensor& weight, Sequences& sequences, const Caches<at::Tensor>& tails) {
  if (const auto& context = sequences.context()) {
    // Each run of tokens behind those of the rank before it, which are then left out.
    const int64_t halo = weight.size(2) - 1;
    const auto out = kernels::short_convolution(context->with_halo(x, halo), weight, sequences.haloed(halo).is_start(), {});
    return out.narrow(1, halo, x.size(1));
  }
  return by_part(sequences, tails, {x}, [&](Sequences& part, at::Tensor* tail, const std::vector<at::Tensor>& own) {
    const auto before = tail ? *tail : at::Tensor();
    if (tail) *tail = kernels::next_tail(own[0], before, weight.size(2));
    return kernels::short_convolution(own[0], weight, part.is_start(), before);
  });
}

at::Tensor LinearAttention::log_gate(const at::Tensor& x, const at::Tensor& low_rank) const {
  const auto of_heads = x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  switch (variant) {
    case LinearVariant::retention:
      return -at::exp2(at::arange(first_head + 1, first_head + heads + 1, of_heads) * (-8.0 / static_cast<double>(all_heads)));
    case LinearVariant::retnet: return (1 - at::exp2(-5 - at::arange(first_head, first_head + heads, of_heads))).log();
    case LinearVariant::scalar_gate:
    case LinearVariant::gated_delta: return -gate_rate->value.exp() * at::softplus(wide(linear(x, {gate})) + step_bias->value);
    case LinearVariant::diagonal_gate:
      return (at::log_sigmoid(wide(linear(low_rank, {gate_out})) + gate_bias->value) / kGateTemperature).unflatten(2, {heads, key_dim});
    case LinearVariant::kda: {
      const auto steps = at::softplus(wide(linear(low_rank, {gate_out})) + gate_bias->value).unflatten(2, {heads, key_dim});
      return -gate_rate->value.exp().unsqueeze(-1) * steps;
    }
    default: return {};
  }
}

at::Tensor LinearAttention::low_rank_of(const at::Tensor& x) const {
  std::vector<Parameter*> shared;
  for (auto* matrix : {gate_in, output_gate_in})
    if (matrix) shared.push_back(matrix);
  return shared.empty() ? at::Tensor() : linear(x, shared);
}

at::Tensor LinearAttention::operator()(const at::Tensor& x, const at::Tensor& low_rank, Sequences& sequences,
                                       const Caches<LinearAttentionCache>& caches) const {
  const base::WorkScope scope("linear_attention", base::WorkKind::linear_attention);
  auto packed = linear(x, {q, k, v});
  if (q_convolution) {
    const auto weight = device::cat({q_convolution->value, k_convolution->value, v_convolution->value});
    packed = short_convolution(packed, weight, sequences, caches.members(&LinearAttentionCache::tail));
  }
  const auto parts = packed.split_with_sizes({key_heads * key_dim, key_heads * key_dim, heads * value_dim}, -1);
  const auto mapped = [&](const at::Tensor& part, const Parameter* scale, const Parameter* bias) {
    const auto features = kernels::feature_map(part.unflatten(2, {key_heads, key_dim}), map, scale ? scale->value : at::Tensor(),
                                               bias ? bias->value : at::Tensor());
    return key_heads == heads ? features : features.repeat_interleave(heads / key_heads, 2);
  };
  kernels::LinearAttentionInputs in{mapped(parts[0], query_scale, query_bias),
                                    mapped(parts[1], key_scale, key_bias),
                                    parts[2].unflatten(2, {heads, value_dim}),
                                    log_gate(x, gate_in ? low_rank.narrow(-1, 0, gate_in->shape[0]) : low_rank),
                                    {},
                                    sequences.is_start()};
  if (rotary) {
    const auto& table = sequences.rotary(*rotary, x.scalar_type());
    in.q = kernels::rotate(in.q, table);
    in.k = kernels::rotate(in.k, table);
  }
  if (scales_queries) in.q = in.q / std::sqrt(static_cast<double>(key_dim));
  if (beta) in.beta = at::sigmoid(wide(linear(x, {beta})));
  const auto mixed = linear_attention(in, sequences, caches.members(&LinearAttentionCache::state));
  const auto each = shares_norm ? (repeated ? repeated(norm->value) : norm->value) : at::ones({value_dim}, wide(mixed).options());
  auto out = wide(kernels::rms_norm(mixed, each, norm_eps, mixed.scalar_type())).flatten(2);
  if (!shares_norm) out = out * norm->value;
  if (output_gate) {
    const auto of_gate = output_gate_in ? low_rank.narrow(-1, low_rank.size(-1) - output_gate_in->shape[0], output_gate_in->shape[0]) : x;
    auto gate_logits = wide(linear(of_gate, {output_gate}));
    if (output_gate_bias) gate_logits = gate_logits + output_gate_bias->value;
    out = out * (has_sigmoid_gate ? at::sigmoid(gate_logits) : at::silu(gate_logits));
  }
  return linear(out.to(x.scalar_type()), {o});
}

}  // namespace ingot::layers
