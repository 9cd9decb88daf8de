// Checks what callers hand in, then chooses the implementation.
#include "kernels/attention.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "device/device.h"
#include "kernels/cpu/attention.h"
#include "kernels/gpu/attention.h"

namespace ingot::kernels {
namespace {

std::string shape_text(const at::Tensor& x) { return fmt::format("[{}]", fmt::join(x.sizes(), ", ")); }

bool has_dense_heads(const at::Tensor& x) { return (x.size(3) <= 1 || x.stride(3) == 1) && (x.size(2) <= 1 || x.stride(2) == x.size(3)); }

void check_operand(const char* name, const at::Tensor& x, const at::Tensor& q) {
  if (!x.defined() || x.dim() != 4)
    throw base::ModelError("attention: {} must be [batch, length, heads, head_dim], it has {} dims", name, x.defined() ? x.dim() : 0);
  if (x.scalar_type() != q.scalar_type() || x.device() != q.device())
    throw base::ModelError("attention: {} is {} on {}, q is {} on {}; convert one of them", name, c10::toString(x.scalar_type()),
                           x.device().str(), c10::toString(q.scalar_type()), q.device().str());
  if (!has_dense_heads(x))
    throw base::ModelError("attention: the last two dims of {} {} are strided; call contiguous() on it", name, shape_text(x));
}

void check_ends(const char* name, const at::Tensor& ends, const at::Tensor& q, int64_t keys) {
  const int64_t batch = q.size(0), q_len = q.size(1);
  if (!ends.defined()) return;
  if (ends.scalar_type() != at::kInt || ends.dim() != 2 || ends.size(0) != batch || ends.size(1) != q_len || ends.device() != q.device())
    throw base::ModelError("attention: {} must be int32 [{}, {}] on the device of q, it is {} {}", name, batch, q_len,
                           c10::toString(ends.scalar_type()), shape_text(ends));
  if (!ends.device().is_cpu()) return;  // looking at the values would make the host wait for the device
  const auto value = ends.accessor<int32_t, 2>();
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < q_len; ++i) {
      const int64_t before = i == 0 ? 0 : value[b][i - 1];
      if (value[b][i] < before || value[b][i] > keys)
        throw base::ModelError("attention: {}[{}, {}] is {}; it must lie between its predecessor's {} and the {} keys", name, b, i,
                               value[b][i], before, keys);
    }
}

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  check_operand("q", q, q);
  check_operand("k", k, q);
  check_operand("v", v, q);
  if (!q.is_floating_point()) throw base::ModelError("attention: q must be floating point, it is {}", c10::toString(q.scalar_type()));
  if (k.sizes().slice(0, 3) != v.sizes().slice(0, 3) || v.size(3) > k.size(3) || k.size(0) != q.size(0) || k.size(3) != q.size(3))
    throw base::ModelError("attention: q {}, k {} and v {} do not fit together", shape_text(q), shape_text(k), shape_text(v));
  if (k.size(2) == 0 || q.size(2) % k.size(2) != 0 || v.size(3) == 0)
    throw base::ModelError("attention: {} kv heads do not divide {} query heads of {}", k.size(2), q.size(2), q.size(3));
  check_ends("visible_from", mask.visible_from, q, k.size(1));
  check_ends("visible_until", mask.visible_until, q, k.size(1));
}

bool is_fused(const at::Tensor& q) { return device::is_cpu(q) && (q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16); }

}  // namespace

AttentionScratch attention_scratch(int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim, at::ScalarType dtype,
                                   int64_t keys) {
  return cpu::attention_scratch(batch, seq, heads, kv_heads, head_dim, keys > 0 ? keys : seq, dtype);
}

AttentionOutput attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ScoreRule& rule,
                                  const AttentionMask& mask) {
  check(q, k, v, mask);
  if (is_fused(q)) return cpu::attention_forward(q, k, v, rule, mask, cpu::best_attention_tiles(q.scalar_type(), q.device()));
  if (gpu::takes_flash_attention(q, k, rule, mask)) return gpu::attention_forward(q, k, v, rule, mask);
  return reference::attention_forward(q, k, v, rule, mask);
}

at::Tensor Pages::joined(std::span<const at::Tensor> pages) const {
  const at::Tensor& page = pages[0];
  auto rows = at::empty({page.size(0), static_cast<int64_t>(pages.size()) * kPageTokens, page.size(1), page.size(3)}, page.options());
  for (size_t i = 0; i < pages.size(); ++i)
    rows.narrow(1, static_cast<int64_t>(i) * kPageTokens, kPageTokens).copy_(pages[i].transpose(1, 2));
  return rows.narrow(1, 0, length);
}

AttentionOutput paged_attention(const at::Tensor& q, const Pages& pages, const ScoreRule& rule, const AttentionMask& mask) {
  if (pages.keys.empty()) throw base::ModelError("attention: there is no page of keys");
  check_operand("k", pages.keys[0], q);
  check_operand("v", pages.values[0], q);
  if (is_fused(q) && !mask.visible_until.defined() && cpu::decodes(q, pages, mask)) {
    check_ends("visible_from", mask.visible_from, q, pages.length);
    return cpu::paged_attention(q, pages, rule, mask);
  }
  return attention_forward(q, pages.all_keys(), pages.all_values(), rule, mask);
}

double attention_flops(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  double pairs = 0;
  for (int64_t i = 0; i < q.size(1); ++i) {
    const int64_t at = mask.query_offset + i, in_block = (at % mask.block + mask.block) % mask.block;
    const int64_t last = at - in_block + mask.block - 1,
                  first = mask.most_visible > 0 ? std::max<int64_t>(0, last + 1 - mask.most_visible) : 0;
    pairs += static_cast<double>(std::max<int64_t>(0, std::min(last + 1, k.size(1)) - first));
  }
  return 2 * pairs * static_cast<double>(q.size(0) * q.size(2) * (q.size(3) + v.size(3)));
}

void merge_attention(const at::Tensor& out, const at::Tensor& log_sum_exp, const AttentionOutput& part) {
  // The share of the new keys in the sum of both; 0 where they are not seen.
  const auto share = (1 + (log_sum_exp - part.log_sum_exp).exp()).reciprocal();
  out.lerp_(part.out.to(out.scalar_type()), share.transpose(1, 2).unsqueeze(-1));
  log_sum_exp.copy_(at::logaddexp(log_sum_exp, part.log_sum_exp));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                                                  const at::Tensor& v, const at::Tensor& out, const at::Tensor& log_sum_exp,
                                                                  const ScoreRule& rule, const AttentionMask& mask) {
  check(q, k, v, mask);
  const auto grad = grad_out.dim() == 4 && !has_dense_heads(grad_out) ? grad_out.contiguous() : grad_out;
  check_operand("grad_out", grad, q);
  check_operand("out", out, q);
  const std::vector<int64_t> out_sizes = {q.size(0), q.size(1), q.size(2), v.size(3)};
  if (grad_out.sizes() != out_sizes || out.sizes() != out_sizes ||
      log_sum_exp.sizes() != at::IntArrayRef({q.size(0), q.size(2), q.size(1)}))
    throw base::ModelError("attention: grad_out {}, out {} and log_sum_exp {} do not fit q {}", shape_text(grad_out), shape_text(out),
                           shape_text(log_sum_exp), shape_text(q));
  if (is_fused(q))
    return cpu::attention_backward(grad, q, k, v, out, log_sum_exp, rule, mask, cpu::best_attention_tiles(q.scalar_type(), q.device()));
  if (gpu::takes_flash_attention(q, k, rule, mask)) return gpu::attention_backward(grad, q, k, v, out, log_sum_exp, rule, mask);
  return reference::attention_backward(grad, q, k, v, out, log_sum_exp, rule, mask);
}

}  // namespace ingot::kernels
