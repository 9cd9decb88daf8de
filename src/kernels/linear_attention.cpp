// Checks what callers hand in, chooses the implementation, and the maps of runs of tokens without the delta rule, which are
// single products over the whole run.
#include "kernels/linear_attention.h"

#include <fmt/ranges.h>

#include <optional>

#include "base/error.h"
#include "kernels/cpu/linear_attention.h"
#include "kernels/gpu/linear_attention.h"
#include "kernels/reference/linear_attention.h"

namespace ingot::kernels {
namespace {

using base::ModelError;
using reference::heads_first;

std::string shape_text(const at::Tensor& x) { return fmt::format("[{}]", fmt::join(x.sizes(), ", ")); }

void check_operand(const char* name, const at::Tensor& x, const at::Tensor& q) {
  if (!x.defined() || x.dim() != 4)
    throw ModelError("linear attention: {} must be [batch, seq, heads, dim], it has {} dims", name, x.defined() ? x.dim() : 0);
  if (x.scalar_type() != q.scalar_type() || x.device() != q.device())
    throw ModelError("linear attention: {} is {} on {}, q is {} on {}; convert one of them", name, c10::toString(x.scalar_type()),
                     x.device().str(), c10::toString(q.scalar_type()), q.device().str());
  if (x.sizes().slice(0, 3) != q.sizes().slice(0, 3))
    throw ModelError("linear attention: {} {} does not fit q {}: batch, seq and heads must be the same", name, shape_text(x),
                     shape_text(q));
}

void check(const LinearAttentionInputs& in) {
  check_operand("q", in.q, in.q);
  check_operand("k", in.k, in.q);
  check_operand("v", in.v, in.q);
  if (!in.q.is_floating_point())
    throw ModelError("linear attention: q must be floating point, it is {}", c10::toString(in.q.scalar_type()));
  if (in.q.sizes() != in.k.sizes() || in.q.numel() == 0 || in.v.numel() == 0)
    throw ModelError("linear attention: q {}, k {} and v {} do not fit together, or hold nothing", shape_text(in.q), shape_text(in.k),
                     shape_text(in.v));
  const auto by_token = in.q.sizes().slice(0, 3);
  const auto fits = [&](const at::Tensor& gate) {
    return gate.dim() == 1 ? gate.size(0) == in.q.size(2) : gate.dim() == 3 ? gate.sizes() == by_token : gate.sizes() == in.q.sizes();
  };
  if (in.log_gate.defined() && (!in.log_gate.is_floating_point() || !fits(in.log_gate)))
    throw ModelError("linear attention: log_gate {} {} does not fit q {}; it is [heads], [batch, seq, heads] or like q",
                     c10::toString(in.log_gate.scalar_type()), shape_text(in.log_gate), shape_text(in.q));
  if (in.beta.defined() && (!in.beta.is_floating_point() || in.beta.sizes() != by_token))
    throw ModelError("linear attention: beta {} does not fit q {}; it is [batch, seq, heads]", shape_text(in.beta), shape_text(in.q));
  if (in.is_start.defined() && (in.is_start.scalar_type() != at::kBool || in.is_start.sizes() != in.q.sizes().slice(0, 2)))
    throw ModelError("linear attention: is_start must be bool [{}, {}], it is {} {}", in.q.size(0), in.q.size(1),
                     c10::toString(in.is_start.scalar_type()), shape_text(in.is_start));
}

void check_state(const char* name, const at::Tensor& state, const LinearAttentionInputs& in) {
  if (!state.defined()) return;
  const std::vector<int64_t> expected = {in.q.size(0), in.q.size(2), in.q.size(3), in.v.size(3)};
  if (state.sizes() != at::IntArrayRef(expected))
    throw ModelError("linear attention: {} {} must be [batch, heads, key_dim, value_dim] = [{}]", name, shape_text(state),
                     fmt::join(expected, ", "));
}

void check_grad_out(const at::Tensor& grad_out, const LinearAttentionInputs& in) {
  check_operand("grad_out", grad_out, in.q);
  if (grad_out.sizes() != in.v.sizes())
    throw ModelError("linear attention: grad_out {} does not fit v {}", shape_text(grad_out), shape_text(in.v));
}

// Without the delta rule the whole run is one chunk as far as states are concerned. All [batch, heads, seq, ·].
struct Run {
  at::Tensor gate;
  bool is_plain;  // nothing decays
  explicit Run(const LinearAttentionInputs& in)
      : gate(reference::gates_by_head(in)), is_plain(!in.log_gate.defined() && !in.is_start.defined()) {}
  at::Tensor decayed_from_start(const at::Tensor& x) const { return is_plain ? x : x * gate.cumsum(2).exp(); }
  at::Tensor decayed_to_end(const at::Tensor& x) const { return is_plain ? x : x * reference::sum_behind(gate, 2).exp(); }
  at::Tensor log_decay() const { return gate.sum(2); }
};

at::Tensor transposed(const at::Tensor& x) { return x.transpose(-1, -2); }

// The delta rule's run in fp32 with a state whose last key_dim columns are the identity's, and no values for these: what becomes of them is
// the transition, and what they add to outputs [batch, seq, heads, key_dim] are the queries as the state before the run meets them. In
// front of them stand the values, if wanted. Nothing where the fused kernel does not take it.
std::optional<LinearAttentionOutput> run_of_identity(const LinearAttentionInputs& in, bool with_values) {
  const auto batch = in.q.size(0), seq = in.q.size(1), heads = in.q.size(2), keys = in.q.size(3);
  const bool fits = keys + (with_values ? in.v.size(3) : 0) <= cpu::kLinearLargestDim;
  if (in.q.scalar_type() == at::kDouble || !fits || !cpu::takes_linear_attention(in)) return std::nullopt;
  auto wide = in;
  wide.q = in.q.to(at::kFloat), wide.k = in.k.to(at::kFloat);
  wide.v = at::zeros({batch, seq, heads, keys}, wide.q.options());
  auto state = at::eye(keys, wide.q.options()).expand({batch, heads, keys, keys});
  if (with_values) {
    wide.v = device::cat({in.v.to(at::kFloat), wide.v}, 3);
    state = device::cat({at::zeros({batch, heads, keys, in.v.size(3)}, wide.q.options()), state}, 3);
  }
  return cpu::linear_attention_forward(wide, state.contiguous());
}

at::Tensor decayed(const at::Tensor& state, const LinearAttentionMap& map) { return map.log_decay.exp().unsqueeze(-1) * state; }

}  // namespace

LinearAttentionOutput linear_attention_forward(const LinearAttentionInputs& in, const at::Tensor& initial_state) {
  check(in);
  check_state("initial_state", initial_state, in);
  if (cpu::takes_linear_attention(in)) return cpu::linear_attention_forward(in, initial_state);
  if (gpu::takes_linear_attention(in)) return gpu::linear_attention_forward(in, initial_state);
  return reference::linear_attention_forward(in, initial_state);
}

LinearAttentionGradients linear_attention_backward(const at::Tensor& grad_out, const at::Tensor& grad_final_state,
                                                   const LinearAttentionInputs& in, const at::Tensor& initial_state,
                                                   const at::Tensor& saved) {
  check(in);
  check_grad_out(grad_out, in);
  check_state("initial_state", initial_state, in);
  check_state("grad_final_state", grad_final_state, in);
  const bool is_on_cpu = cpu::takes_linear_attention(in);
  if (is_on_cpu || gpu::takes_linear_attention(in)) {
    if (!saved.defined()) throw ModelError("linear attention: backward needs what the forward pass saved for these inputs");
    return is_on_cpu ? cpu::linear_attention_backward(grad_out, grad_final_state, in, saved)
                     : gpu::linear_attention_backward(grad_out, grad_final_state, in, saved);
  }
  return reference::linear_attention_backward(grad_out, grad_final_state, in, initial_state);
}

LinearAttentionMap linear_attention_map(const LinearAttentionInputs& in) {
  check(in);
  if (in.beta.defined()) {
    const auto run = run_of_identity(in, /*with_values=*/true);
    if (!run) return reference::delta_rule_map(in);
    const int64_t values = in.v.size(3), keys = in.q.size(3);
    return {run->final_state.narrow(3, 0, values).contiguous(), {}, run->final_state.narrow(3, values, keys).contiguous()};
  }
  const Run run(in);
  return {cpu::takes_linear_attention_states(in) ? cpu::linear_attention_state(in)
                                                 : at::matmul(transposed(run.decayed_to_end(heads_first(in.k))), heads_first(in.v)),
          run.log_decay(),
          {}};
}

at::Tensor apply(const LinearAttentionMap& map, const at::Tensor& state) {
  return (map.matrix.defined() ? at::matmul(map.matrix, state) : decayed(state, map)) + map.added;
}

at::Tensor apply_transposed(const LinearAttentionMap& map, const at::Tensor& grad_state) {
  return map.matrix.defined() ? at::matmul(transposed(map.matrix), grad_state) : decayed(grad_state, map);
}

LinearAttentionMap compose(const LinearAttentionMap& first, const LinearAttentionMap& second) {
  if (first.matrix.defined()) return {apply(second, first.added), {}, at::matmul(second.matrix, first.matrix)};
  return {apply(second, first.added), first.log_decay + second.log_decay, {}};
}

void add_linear_attention_of_state(const at::Tensor& out, const LinearAttentionInputs& in, const at::Tensor& initial_state) {
  check(in);
  check_state("initial_state", initial_state, in);
  if (out.sizes() != in.v.sizes()) throw ModelError("linear attention: out {} does not fit v {}", shape_text(out), shape_text(in.v));
  if (cpu::takes_linear_attention_states(in) && out.scalar_type() == in.v.scalar_type() && out.stride(3) == 1)
    return cpu::add_linear_attention_of_state(out, in, initial_state);
  const auto add = [&](const at::Tensor& part) { out.copy_(out + part); };  // in the wider of both dtypes
  if (in.beta.defined()) {
    // Outputs are affine in the initial state: without values only its part is left.
    auto alone = in;
    alone.v = at::zeros_like(in.v, in.v.options().dtype(initial_state.scalar_type()));
    alone.q = in.q.to(initial_state.scalar_type());
    alone.k = in.k.to(initial_state.scalar_type());
    return add(linear_attention_forward(alone, initial_state).out);
  }
  add(at::matmul(Run(in).decayed_from_start(heads_first(in.q)), initial_state).transpose(1, 2));
}

at::Tensor linear_attention_state_gradient(const at::Tensor& grad_out, const LinearAttentionInputs& in) {
  check(in);
  check_grad_out(grad_out, in);
  if (in.beta.defined()) {
    const auto run = run_of_identity(in, /*with_values=*/false);
    if (!run) return reference::delta_rule_state_gradient(grad_out, in);
    return at::matmul(transposed(heads_first(run->out)), heads_first(grad_out));
  }
  if (cpu::takes_linear_attention_states(in)) return cpu::linear_attention_state_gradient(grad_out, in);
  return at::matmul(transposed(Run(in).decayed_from_start(heads_first(in.q))), heads_first(grad_out));
}

void add_gradients_of_states(LinearAttentionGradients& grads, const at::Tensor& grad_out, const LinearAttentionInputs& in,
                             const at::Tensor& initial_state, const at::Tensor& grad_final_state) {
  check(in);
  check_grad_out(grad_out, in);
  check_state("initial_state", initial_state, in);
  check_state("grad_final_state", grad_final_state, in);
  if (in.beta.defined()) throw ModelError("linear attention: the delta rule's backward pass cannot be split; call it with both states");
  const Run run(in);
  const bool has_gates = in.log_gate.defined() && in.log_gate.dim() > 1;
  const auto summed = [&](const at::Tensor& x) { return in.log_gate.dim() == 3 ? x.sum(-1, true) : x; };  // over channels that share a gate
  at::Tensor to_gate;  // [batch, heads, seq, 1 or key_dim]
  const auto add_to_gate = [&](const at::Tensor& x) { to_gate = to_gate.defined() ? to_gate + x : x; };
  if (initial_state.defined()) {
    const auto to_q = run.decayed_from_start(at::matmul(heads_first(grad_out), transposed(initial_state)));
    grads.q.add_(to_q.transpose(1, 2));
    if (has_gates) add_to_gate(reference::sum_from(summed(heads_first(in.q) * to_q), 2));
  }
  if (grad_final_state.defined()) {
    const auto keys = run.decayed_to_end(heads_first(in.k));
    const auto to_k = run.decayed_to_end(at::matmul(heads_first(in.v), transposed(grad_final_state)));
    grads.v.add_(at::matmul(keys, grad_final_state).transpose(1, 2));
    grads.k.add_(to_k.transpose(1, 2));
    if (has_gates) add_to_gate(reference::sum_before(summed(heads_first(in.k) * to_k), 2));
    const auto kept = run.log_decay().exp().unsqueeze(-1) * grad_final_state;  // of the initial state
    grads.initial_state.add_(kept);
    if (has_gates && initial_state.defined()) add_to_gate(summed((kept * initial_state).sum(-1).unsqueeze(2)));
  }
  if (to_gate.defined()) grads.log_gate.add_((in.log_gate.dim() == 3 ? to_gate.squeeze(-1) : to_gate).transpose(1, 2));
}

at::Tensor bidirectional_linear_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& is_start) {
  check({q, k, v, {}, {}, is_start});
  const auto queries = heads_first(q), keys = heads_first(k), values = heads_first(v);
  const auto all = [&](int64_t row, int64_t rows, int64_t from, int64_t count) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, row, rows).narrow(2, from, count); };
    return at::matmul(part(queries), at::matmul(transposed(part(keys)), part(values)));
  };
  const int64_t batch = q.size(0), seq = q.size(1);
  if (!is_start.defined()) return all(0, batch, 0, seq).transpose(1, 2).to(v.scalar_type());
  std::vector<at::Tensor> rows;
  for (int64_t row = 0; row < batch; ++row) {
    std::vector<at::Tensor> documents;
    const auto starts = is_start[row].nonzero().flatten().cpu();
    int64_t from = 0;
    for (int64_t i = 0; i <= starts.numel(); ++i) {
      const int64_t end = i < starts.numel() ? starts[i].item<int64_t>() : seq;
      if (end > from) documents.push_back(all(row, 1, from, end - from));
      from = end;
    }
    rows.push_back(device::cat(documents, 2));
  }
  return device::cat(rows, 0).transpose(1, 2).to(v.scalar_type());
}

at::Tensor linear_attention_step(const LinearAttentionInputs& in, at::Tensor& state) {
  check(in);
  check_state("state", state, in);
  if (in.q.size(1) != 1) throw ModelError("linear attention: a step takes one token, q {} has {}", shape_text(in.q), in.q.size(1));
  auto [out, next, saved] = reference::linear_attention_recurrence(in, state);
  state = next;
  return out;
}

}  // namespace ingot::kernels
