// Chooses for each kernel between the fused CPU implementation and the ATen composition.
#include "kernels/reference/reference.h"

namespace ingot::kernels {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, at::ScalarType out) { return reference::rms_norm(x, weight, eps, out); }
at::Tensor join_residual(const at::Tensor& residual, const at::Tensor& branch, const ResidualScale& scale) {
  return reference::join_residual(residual, branch, scale);
}
std::pair<at::Tensor, at::Tensor> join_residual_and_norm(const at::Tensor& residual, const at::Tensor& branch, const ResidualScale& scale,
                                                         const at::Tensor& weight, double eps, at::ScalarType out) {
  auto joined = reference::join_residual(residual, branch, scale);
  auto normed = reference::rms_norm(joined, weight, eps, out);
  return {joined, normed};
}
at::Tensor swiglu(const at::Tensor& gate_up) { return reference::swiglu(gate_up); }
at::Tensor rotate(const at::Tensor& x, const RotaryTable& table) { return reference::rotate(x, table); }
std::tuple<at::Tensor, at::Tensor, at::Tensor> split_and_rotate(const at::Tensor& packed, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                                                const RotaryTable& table) {
  return reference::split_and_rotate(packed, heads, kv_heads, head_dim, table);
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> cca_mix(const at::Tensor& packed, const CcaShape& shape, const CcaWeights& weights,
                                                       const RotaryTable& table, const at::Tensor& is_start, const CcaTail& tail) {
  return reference::cca_mix(packed, shape, weights, table, is_start, tail);
}

}  // namespace ingot::kernels
