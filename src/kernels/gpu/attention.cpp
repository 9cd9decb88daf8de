#include "kernels/gpu/attention.h"

#include <ATen/Context.h>

#include <algorithm>

#include "device/device.h"
#include "device/stream.h"
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

bool has_documents(const AttentionMask& mask) { return mask.visible_from.defined() && mask.has_documents; }

Span span_of(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const int64_t end = mask.query_offset + q.size(1), keys = std::clamp<int64_t>(end, 0, k.size(1));
  Span span{keys, keys == end && q.size(1) > 1, {}, {}};
  if (mask.visible_from.defined() && mask.most_visible > 0) span.left = mask.most_visible - 1, span.right = 0;
  return span;
}

at::Tensor in_one_row(const at::Tensor& x) { return x.flatten(0, 1); }  // [batch * seq, heads, head_dim]

// Sums by atomicAdd would be a little faster, and no run could be repeated. Where it only warns, libtorch takes them all the same.
class InFixedOrder {
 public:
  InFixedOrder() { at::globalContext().setDeterministicAlgorithms(true, /*only_warns=*/false); }
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

// What host views of `tensors` and of the mask say to the host's kernels.
template <class Run>
void launch(std::vector<at::Tensor> tensors, const AttentionMask& mask, const Run& run) {
  if (device::is_counting(tensors.front())) return;
  const bool is_masked = mask.visible_from.defined();
  if (is_masked) tensors.push_back(mask.visible_from);
  AttentionMask of_host = mask;  // without tensors of the device: a job would keep them
  of_host.visible_from = of_host.document_offsets = at::Tensor();
  device::launch(tensors, [=](const auto& host) {
    auto own = of_host;
    if (is_masked) own.visible_from = host.back();
    run(host, own);
  });
}

// The flash kernels take heads of one width: values of fewer channels are filled up with zeros.
at::Tensor filled_up(const at::Tensor& x, const at::Tensor& q) {
  return x.size(3) == q.size(3) ? x : at::constant_pad_nd(x, {0, q.size(3) - x.size(3)});
}

AttentionOutput forward_of_virtual_device(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ScoreRule& rule,
                                          const AttentionMask& mask) {
  AttentionOutput result{at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options()),
                         at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat))};
  device::note("attention", {q, k, v}, {result.out, result.log_sum_exp}, attention_flops(q, k, v, mask));
  launch({q, k, v, result.out, result.log_sum_exp}, mask, [rule](const auto& host, const AttentionMask& of_host) {
    const auto [out, log_sum_exp] = kernels::attention_forward(host[0], host[1], host[2], rule, of_host);
    host[3].copy_(out);
    host[4].copy_(log_sum_exp);
  });
  return result;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward_of_virtual_device(const at::Tensor& grad_out, const at::Tensor& q,
                                                                          const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                                                                          const at::Tensor& log_sum_exp, const ScoreRule& rule,
                                                                          const AttentionMask& mask) {
  auto grad_q = at::empty(q.sizes(), q.options()), grad_k = at::empty(k.sizes(), k.options()), grad_v = at::empty(v.sizes(), v.options());
  allocate_work_areas(q, k);
  device::note("attention.backward", {grad_out, q, k, v, out, log_sum_exp}, {grad_q, grad_k, grad_v}, 2 * attention_flops(q, k, v, mask));
  launch({grad_out, q, k, v, out, log_sum_exp, grad_q, grad_k, grad_v}, mask, [rule](const auto& host, const AttentionMask& of_host) {
    const auto [by_q, by_k, by_v] = kernels::attention_backward(host[0], host[1], host[2], host[3], host[4], host[5], rule, of_host);
    host[6].copy_(by_q);
    host[7].copy_(by_k);
    host[8].copy_(by_v);
  });
  return {grad_q, grad_k, grad_v};
}

}  // namespace

bool takes_flash_attention(const at::Tensor& q, const at::Tensor& k, const ScoreRule& rule, const AttentionMask& mask) {
  if (!device::is_gpu(q) || q.numel() == 0) return false;
  if (q.scalar_type() != at::kBFloat16 && q.scalar_type() != at::kHalf) return false;
  if (q.size(3) % 8 != 0 || q.size(3) > kMostChannels || mask.visible_until.defined() || rule.cap > 0) return false;
  const bool are_at_the_end = mask.query_offset >= 0 && mask.query_offset + q.size(1) <= k.size(1);
  if (has_documents(mask)) return mask.document_offsets.defined() && mask.query_offset == 0 && q.size(1) == k.size(1);
  if (mask.visible_from.defined()) return mask.most_visible > 0 && are_at_the_end;
  return are_at_the_end || mask.query_offset >= k.size(1) - 1;
}

AttentionOutput attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v_in, const ScoreRule& rule,
                                  const AttentionMask& mask) {
  if (device::is_virtual(q.device())) return forward_of_virtual_device(q, k, v_in, rule, mask);
  const auto v = filled_up(v_in, q);
  const auto of_values = [&](const at::Tensor& out) { return out.narrow(3, 0, v_in.size(3)).contiguous(); };
  const auto span = span_of(q, k, mask);
  if (has_documents(mask)) {
    auto [out, log_sum_exp, seed, offset, probabilities] = at::_flash_attention_forward(
        in_one_row(q), in_one_row(k), in_one_row(v), mask.document_offsets, mask.document_offsets, q.size(1), k.size(1), /*dropout_p=*/0,
        /*is_causal=*/true, /*return_debug_mask=*/false, std::optional<double>(rule.scale), span.left, span.right);
    return {of_values(out.contiguous().view(q.sizes())), log_sum_exp.view({q.size(2), q.size(0), q.size(1)}).transpose(0, 1).contiguous()};
  }
  const std::optional<at::Tensor> of_one_length;
  auto [out, log_sum_exp, seed, offset, probabilities] = at::_flash_attention_forward(
      q, k.narrow(1, 0, span.keys), v.narrow(1, 0, span.keys), of_one_length, of_one_length, q.size(1), span.keys, /*dropout_p=*/0,
      span.is_causal, /*return_debug_mask=*/false, std::optional<double>(rule.scale), span.left, span.right);
  return {of_values(out), log_sum_exp};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& grad_in, const at::Tensor& q, const at::Tensor& k,
                                                                  const at::Tensor& v_in, const at::Tensor& out_in,
                                                                  const at::Tensor& log_sum_exp, const ScoreRule& rule,
                                                                  const AttentionMask& mask) {
  if (device::is_virtual(q.device())) return backward_of_virtual_device(grad_in, q, k, v_in, out_in, log_sum_exp, rule, mask);
  const auto v = filled_up(v_in, q), out = filled_up(out_in, q), grad_out = filled_up(grad_in, q);
  const auto of_values = [&](const at::Tensor& grad) { return grad.narrow(3, 0, v_in.size(3)).contiguous(); };
  const auto span = span_of(q, k, mask);
  const InFixedOrder in_fixed_order;
  const auto no_dropout = at::empty({2}, q.options().dtype(at::kLong));  // where the state of random numbers would be
  if (has_documents(mask)) {
    auto [grad_q, grad_k, grad_v] = at::_flash_attention_backward(
        in_one_row(grad_out), in_one_row(q), in_one_row(k), in_one_row(v), in_one_row(out),
        log_sum_exp.transpose(0, 1).reshape({q.size(2), -1}), mask.document_offsets, mask.document_offsets, q.size(1), k.size(1),
        /*dropout_p=*/0, /*is_causal=*/true, no_dropout, no_dropout, rule.scale, span.left, span.right);
    return {grad_q.contiguous().view(q.sizes()), grad_k.contiguous().view(k.sizes()), of_values(grad_v.contiguous().view(v.sizes()))};
  }
  auto [grad_q, grad_k, grad_v] =
      at::_flash_attention_backward(grad_out, q, k.narrow(1, 0, span.keys), v.narrow(1, 0, span.keys), out, log_sum_exp, {}, {}, q.size(1),
                                    span.keys, /*dropout_p=*/0, span.is_causal, no_dropout, no_dropout, rule.scale, span.left, span.right);
  if (span.keys == k.size(1)) return {grad_q.contiguous(), grad_k.contiguous(), of_values(grad_v)};
  const auto of_all_keys = [&](const at::Tensor& grad) {
    auto all = at::zeros(k.sizes(), k.options());
    all.narrow(1, 0, span.keys).copy_(grad);
    return all;
  };
  return {grad_q.contiguous(), of_all_keys(grad_k), of_values(of_all_keys(grad_v))};
}

}  // namespace ingot::kernels::gpu
