// Attention by ATen operations. Algorithm: all scores at once, an explicit mask, softmax through log-sum-exp. Narrow floats
// are widened to fp32 first. Limit: memory and traffic of the [batch, heads, q_len, k_len] scores, several times over.
#include "kernels/attention.h"

namespace ingot::kernels::reference {
namespace {

// Operands as [batch, kv_heads, group, length, head_dim] in the accumulation dtype, group = query heads per kv head.
struct Operands {
  at::Tensor q, k, v;
  at::Tensor hidden;  // bool [batch or 1, 1, 1, q_len, k_len], true where a query does not see a key
};

at::Tensor by_kv_head(const at::Tensor& x, int64_t kv_heads, at::ScalarType dtype) {
  const int64_t group = x.size(2) / kv_heads;
  return x.to(dtype).view({x.size(0), x.size(1), kv_heads, group, x.size(3)}).permute({0, 2, 3, 1, 4});
}

at::Tensor from_kv_head(const at::Tensor& x, at::ScalarType dtype) {
  return x.permute({0, 3, 1, 2, 4}).flatten(2, 3).to(dtype).contiguous();
}

at::Tensor hidden_keys(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const auto integers = q.options().dtype(at::kLong);
  const auto keys = at::arange(k.size(1), integers);
  const auto last = (at::arange(q.size(1), integers) + mask.query_offset).unsqueeze(1);
  // [1 or batch, q_len, k_len]
  auto hidden = mask.visible_until.defined() ? keys >= mask.visible_until.unsqueeze(2) : (keys > last).unsqueeze(0);
  if (mask.visible_from.defined()) hidden = hidden.logical_or(keys < mask.visible_from.unsqueeze(2));
  return hidden.unsqueeze(1).unsqueeze(1);
}

Operands operands(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  const auto dtype = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t kv_heads = k.size(2);
  return {by_kv_head(q, kv_heads, dtype), by_kv_head(k, kv_heads, dtype), by_kv_head(v, kv_heads, dtype), hidden_keys(q, k, mask)};
}

at::Tensor scores(const Operands& x, const ScoreRule& rule) {
  const auto products = at::matmul(x.q, x.k.transpose(-1, -2));
  const auto all = rule.cap > 0 ? (products * (rule.scale / rule.cap)).tanh() * rule.cap : products * rule.scale;
  return all.masked_fill(x.hidden, -std::numeric_limits<double>::infinity());
}

// Of scores by their products; where they are hidden, anything finite.
at::Tensor slope(const at::Tensor& scores, const ScoreRule& rule) {
  return rule.cap > 0 ? (1 - (scores.clamp_min(-rule.cap) / rule.cap).square()) * rule.scale : at::full({}, rule.scale, scores.options());
}

// Of queries that see no key: so that their weights become 0 and not NaN.
at::Tensor finite(const at::Tensor& log_sum_exp) { return log_sum_exp.clamp_min(-1e30); }

}  // namespace

AttentionOutput attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ScoreRule& rule,
                                  const AttentionMask& mask) {
  const Operands x = operands(q, k, v, mask);
  const auto s = scores(x, rule);
  const auto log_sum_exp = s.logsumexp(-1, /*keepdim=*/true);
  const auto out = at::matmul((s - finite(log_sum_exp)).exp(), x.v);
  return {from_kv_head(out, q.scalar_type()), log_sum_exp.squeeze(-1).flatten(1, 2).contiguous()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                                                  const at::Tensor& v, const at::Tensor& out, const at::Tensor& log_sum_exp,
                                                                  const ScoreRule& rule, const AttentionMask& mask) {
  const Operands x = operands(q, k, v, mask);
  const int64_t kv_heads = k.size(2);
  const auto dtype = x.q.scalar_type();
  const auto grad = by_kv_head(grad_out, kv_heads, dtype);
  const auto delta = (grad * by_kv_head(out, kv_heads, dtype)).sum(-1, /*keepdim=*/true);
  const auto lse = log_sum_exp.to(dtype).view({q.size(0), kv_heads, -1, q.size(1), 1});
  const auto s = scores(x, rule);
  const auto p = (s - finite(lse)).exp();  // [batch, kv_heads, group, q_len, k_len]
  const auto ds = p * (at::matmul(grad, x.v.transpose(-1, -2)) - delta) * slope(s, rule);
  const auto grad_q = at::matmul(ds, x.k);
  const auto grad_k = at::matmul(ds.transpose(-1, -2), x.q).sum(2, /*keepdim=*/true);
  const auto grad_v = at::matmul(p.transpose(-1, -2), grad).sum(2, /*keepdim=*/true);
  return {from_kv_head(grad_q, q.scalar_type()), from_kv_head(grad_k, k.scalar_type()), from_kv_head(grad_v, v.scalar_type())};
}

}  // namespace ingot::kernels::reference
