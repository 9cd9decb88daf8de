// Linear attention token by token, as its definition says. Limit: a state per token is kept for autograd.
#include "kernels/reference/linear_attention.h"

namespace ingot::kernels::reference {

LinearAttentionOutput linear_attention_recurrence(const LinearAttentionInputs& in, const at::Tensor& initial_state) {
  const auto wide = in.q.options().dtype(accumulation_type(in.q.scalar_type()));
  const int64_t seq = in.q.size(1);
  // Of each token, [batch, heads, …] with two dims to meet the state's. Not selected one by one: each gradient would be as long as the row.
  const auto tokens = [&](const at::Tensor& x) { return x.to(wide).unbind(1); };
  const auto q = tokens(in.q.unsqueeze(-2)), k = tokens(in.k.unsqueeze(-1)), v = tokens(in.v.unsqueeze(-2));
  std::vector<at::Tensor> gate, beta;
  if (in.log_gate.defined()) {
    const auto g = in.log_gate.dim() == 1 ? in.log_gate.expand({1, seq, -1}) : in.log_gate;
    gate = tokens(g.dim() == 3 ? g.unsqueeze(-1).unsqueeze(-1) : g.unsqueeze(-1));
  }
  if (in.beta.defined()) beta = tokens(in.beta.unsqueeze(-1).unsqueeze(-1));
  auto state = initial_state.defined() ? initial_state.to(wide) : at::zeros({in.q.size(0), in.q.size(2), in.q.size(3), in.v.size(3)}, wide);
  std::vector<at::Tensor> outputs;
  for (size_t t = 0; t < static_cast<size_t>(seq); ++t) {
    if (in.is_start.defined()) state = state.masked_fill(in.is_start.select(1, static_cast<int64_t>(t)).view({-1, 1, 1, 1}), 0);
    if (!gate.empty()) state = state * gate[t].exp();
    auto write = v[t];
    if (!beta.empty()) write = beta[t] * (write - at::matmul(k[t].transpose(-1, -2), state));
    state = state + at::matmul(k[t], write);
    outputs.push_back(at::matmul(q[t], state).squeeze(-2));
  }
  return {at::stack(outputs, 1).to(in.v.scalar_type()), state, {}};
}

}  // namespace ingot::kernels::reference
