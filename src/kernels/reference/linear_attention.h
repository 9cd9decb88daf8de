// Operands of linear attention with the heads in front and documents folded into the gates, for the compositions of this
// folder and the primitives of kernels/linear_attention.cpp.
#pragma once

#include <limits>

#include "kernels/linear_attention.h"
#include "kernels/reference/reference.h"

namespace ingot::kernels::reference {

/// [batch, seq, heads, dim] -> [batch, heads, seq, dim] in the dtype of states.
inline at::Tensor heads_first(const at::Tensor& x) { return x.to(accumulation_type(x.scalar_type())).transpose(1, 2); }

/// The logarithmic gate of every token, [batch, heads, seq, 1 or key_dim] in the dtype of states: -inf at the first token of a
/// document, 0 without gates. It is only ever added up and exponentiated, so that -inf is as good a number as any.
inline at::Tensor gates_by_head(const LinearAttentionInputs& in) {
  const int64_t batch = in.q.size(0), seq = in.q.size(1), heads = in.q.size(2);
  const auto wide = in.q.options().dtype(accumulation_type(in.q.scalar_type()));
  at::Tensor gate;
  if (!in.log_gate.defined()) gate = at::zeros({1, 1, 1, 1}, wide);
  else if (in.log_gate.dim() == 1) gate = in.log_gate.to(wide).view({1, heads, 1, 1});
  else gate = (in.log_gate.dim() == 3 ? in.log_gate.unsqueeze(-1) : in.log_gate).to(wide).transpose(1, 2);
  gate = gate.expand({batch, heads, seq, gate.size(3)});
  if (!in.is_start.defined()) return gate;
  return gate.masked_fill(in.is_start.view({batch, 1, seq, 1}), -std::numeric_limits<double>::infinity());
}

/// Sums along `dim` of the entries from each one on, and of those behind it.
inline at::Tensor sum_from(const at::Tensor& x, int64_t dim) { return x.flip(dim).cumsum(dim).flip(dim); }
inline at::Tensor sum_behind(const at::Tensor& x, int64_t dim) {
  const int64_t n = x.size(dim);
  return device::cat({sum_from(x.narrow(dim, 1, n - 1), dim), at::zeros_like(x.narrow(dim, 0, 1))}, dim);
}
/// Of those before it.
inline at::Tensor sum_before(const at::Tensor& x, int64_t dim) {
  const int64_t n = x.size(dim);
  return device::cat({at::zeros_like(x.narrow(dim, 0, 1)), x.narrow(dim, 0, n - 1).cumsum(dim)}, dim);
}

}  // namespace ingot::kernels::reference
