#include "kernels/gpu/attention.h"

#include <ATen/Context.h>

#include <algorithm>

#include "device/device.h"
#include "device/virtual_device.h"

namespace ingot::kernels::gpu {
namespace {

constexpr int64_t kMostChannels = 256, kBlock = 128;  // FlashAttention's; rows of its work areas are filled up to a block

// What the kernels are told instead of the mask. They take the last query for the one that stands at the last key.
struct Span {
  int64_t keys;  // that any query sees, from the first on
  bool is_causal;
  std::optional<int64_t> left, right;  // keys that a query sees on both sides of itself
};

Span span_of(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const int64_t end = mask.query_offset + q.size(1), keys = std::clamp<int64_t>(end, 0, k.size(1));
  Span span{keys, keys == end && q.size(1) > 1, {}, {}};
  if (mask.visible_from.defined()) span.left = mask.most_visible - 1, span.right = 0;
  return span;
}

// atomicAdd in no fixed order would be a little faster, and no run could be repeated.
class InFixedOrder {
 public:
  InFixedOrder() { at::globalContext().setDeterministicAlgorithms(true, true); }
  ~InFixedOrder() { at::globalContext().setDeterministicAlgorithms(before_, only_warns_); }
  InFixedOrder(const InFixedOrder&) = delete;
  InFixedOrder& operator=(const InFixedOrder&) = delete;

 private:
  bool before_ = at::globalContext().deterministicAlgorithms(), only_warns_ = at::globalContext().deterministicAlgorithmsWarnOnly();
};

int64_t filled_up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

// The work areas of the backward pass: gradients of q in fp32, a number per query, gradients of k and v for each query head.
void allocate_work_areas(const at::Tensor& q, const at::Tensor& k) {
  const int64_t rows = q.size(0) * q.size(2) * filled_up(q.size(1), kBlock);
  const auto fp32 = q.options().dtype(at::kFloat);
  std::vector<at::Tensor> areas{at::empty({rows, filled_up(q.size(3), 32)}, fp32), at::empty({rows}, fp32)};
  if (k.size(2) != q.size(2)) areas.insert(areas.end(), 2, at::empty({2, k.size(0), k.size(1), q.size(2), k.size(3)}, k.options()));
}

}  // namespace

bool takes_flash_attention(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  if (!device::is_gpu(q) || device::is_emulated(q.device()) || q.numel() == 0) return false;
  if (q.scalar_type() != at::kBFloat16 && q.scalar_type() != at::kHalf) return false;
  if (q.size(3) % 8 != 0 || q.size(3) > kMostChannels) return false;
  const bool are_at_the_end = mask.query_offset >= 0 && mask.query_offset + q.size(1) <= k.size(1);
  if (mask.visible_from.defined()) return !mask.has_documents && mask.most_visible > 0 && are_at_the_end;
  return are_at_the_end || mask.query_offset >= k.size(1) - 1;
}

AttentionOutput attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale, const AttentionMask& mask) {
  const auto span = span_of(q, k, mask);
  if (device::is_counting(q)) {
    AttentionOutput result{at::empty(q.sizes(), q.options()),
                           at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat))};
    device::counted("attention", {q, k, v}, {result.out, result.log_sum_exp}, attention_flops(q, k, mask));
    return result;
  }
  const std::optional<at::Tensor> of_one_length;
  auto [out, log_sum_exp, seed, offset, probabilities] = at::_flash_attention_forward(
      q, k.narrow(1, 0, span.keys), v.narrow(1, 0, span.keys), of_one_length, of_one_length, q.size(1), span.keys, /*dropout_p=*/0,
      span.is_causal, /*return_debug_mask=*/false, std::optional<double>(scale), span.left, span.right);
  return {out.contiguous(), log_sum_exp};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                                                  const at::Tensor& v, const at::Tensor& out, const at::Tensor& log_sum_exp,
                                                                  double scale, const AttentionMask& mask) {
  const auto span = span_of(q, k, mask);
  if (device::is_counting(q)) {
    auto grad_q = at::empty(q.sizes(), q.options()), grad_k = at::empty(k.sizes(), k.options()), grad_v = at::empty(v.sizes(), v.options());
    allocate_work_areas(q, k);
    device::counted("attention.backward", {grad_out, q, k, v, out, log_sum_exp}, {grad_q, grad_k, grad_v}, 2 * attention_flops(q, k, mask));
    return {grad_q, grad_k, grad_v};
  }
  const InFixedOrder in_fixed_order;
  const auto no_dropout = at::empty({2}, q.options().dtype(at::kLong));  // where the state of random numbers would be
  auto [grad_q, grad_k, grad_v] = at::_flash_attention_backward(
      grad_out, q, k.narrow(1, 0, span.keys), v.narrow(1, 0, span.keys), out, log_sum_exp, {}, {}, q.size(1), span.keys, /*dropout_p=*/0,
      span.is_causal, no_dropout, no_dropout, scale, span.left, span.right);
  if (span.keys == k.size(1)) return {grad_q.contiguous(), grad_k.contiguous(), grad_v.contiguous()};
  const auto of_all_keys = [&](const at::Tensor& grad) {
    auto all = at::zeros(k.sizes(), k.options());
    all.narrow(1, 0, span.keys).copy_(grad);
    return all;
  };
  return {grad_q.contiguous(), of_all_keys(grad_k), of_all_keys(grad_v)};
}

}  // namespace ingot::kernels::gpu
