// Softmax attention with grouped kv heads: one function for plain causal, sliding-window and packed-document masks, and those of encoders
// and of drafts, for training and for decoding against a cache. Query head h reads kv head h / (heads / kv_heads).
//
// A query sees one contiguous run of keys: from `visible_from` (0, the start of a window, or the start of its document) up to
// and including its own position, or up to `visible_until`. Keys may be a part of a sequence: queries may stand behind all of them, or see
// none, whose output is 0 and whose log_sum_exp is -inf. The results over the parts of a sequence are put together by merge_attention, and
// gradients are the sums of what attention_backward says for each part with the whole sequence's out and log_sum_exp.
//
// Nothing here records gradients: callers are autograd functions, or inference. Any thread may call;
// results are bit-equal from run to run and do not depend on the number of threads.
//
// On a CPU fp32 and bf16 take the fused kernel (cpu/attention.h), on a GPU bf16 and fp16 libtorch's flash kernels where they have the mask
// (gpu/attention.h): memory linear in the sequence. All else takes the reference composition, whose scores are [batch, heads, q_len,
// k_len].
#pragma once

#include <span>
#include <tuple>

#include "device/aten.h"
#include "kernels/page_tokens.h"

namespace ingot::kernels {

/// What becomes of the product of a query and a key: a score of scale * product, which a cap above 0 keeps within it by
/// cap * tanh(score / cap) (Gemma 2). A number is a scale without a cap. Not for libtorch's flash kernels with a cap.
struct ScoreRule {
  ScoreRule(double of_products = 1, double largest = 0) : scale(of_products), cap(largest) {}
  double scale, cap;
};

struct AttentionMask {
  at::Tensor visible_from{};  // int32 [batch, q_len], first key that each query sees, not decreasing along q_len; undefined: all 0
  int64_t query_offset = 0;   // query i stands at key position query_offset + i, the last that it sees; may lie outside of the keys
  int64_t most_visible = 0;   // keys that a query sees at the most (a window), 0: no limit. Counts FLOPs; visible_from masks
  bool has_documents = true;  // false: visible_from is that of a window of most_visible keys alone
  at::Tensor
      document_offsets{};  // int32 [documents + 1], first token of each in the batch's rows one after another, and their end; or undefined
  /// int32 [batch, q_len], the key behind the last that each query sees, not decreasing along q_len, 0 to k_len; undefined: as query_offset
  /// says. Not for libtorch's flash kernels.
  at::Tensor visible_until{};
  int64_t block = 1;  // where visible_until is set: it lies at the ends of blocks of so many tokens. Counts FLOPs
};

struct AttentionOutput {
  at::Tensor out;          // [batch, q_len, heads, value_dim], contiguous, dtype of q
  at::Tensor log_sum_exp;  // [batch, heads, q_len], natural logarithm of the softmax denominator; fp32, or fp64 for fp64
};

/// q [batch, q_len, heads, head_dim]; k [batch, k_len, kv_heads, head_dim]; v [batch, k_len, kv_heads, value_dim]; any k_len. value_dim is
/// at most head_dim.
/// The first two dims may be strided, the last two must be contiguous. out = softmax(rule of q k^T) v over the visible keys.
/// Throws ModelError when shapes, dtypes or strides do not fit, or (on a CPU) when visible_from or visible_until decreases or leaves the
/// keys.
AttentionOutput attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ScoreRule& rule,
                                  const AttentionMask& mask = {});

/// Keys and values that lie in pages, [batch, kv_heads, kPageTokens, head_dim or value_dim] each, contiguous, so that what one head reads
/// lies together; `length` rows of them are there.
struct Pages {
  std::span<const at::Tensor> keys, values;
  int64_t length = 0;
  at::Tensor all_keys() const { return joined(keys); }  // a copy, [batch, length, kv_heads, head_dim]
  at::Tensor all_values() const { return joined(values); }

 private:
  at::Tensor joined(std::span<const at::Tensor> pages) const;
};

/// attention_forward of keys and values in pages. On a CPU a few queries read the keys where they lie.
AttentionOutput paged_attention(const at::Tensor& q, const Pages& pages, const ScoreRule& rule, const AttentionMask& mask = {});

/// Gradients of attention_forward: {grad_q, grad_k, grad_v}, contiguous, with the shapes and dtype of q, k, v.
/// grad_out like out, in any strides; out and log_sum_exp are what the forward pass returned for the same inputs.
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                                                  const at::Tensor& v, const at::Tensor& out, const at::Tensor& log_sum_exp,
                                                                  const ScoreRule& rule, const AttentionMask& mask = {});

/// FLOPs of attention_forward: 2 (head_dim + value_dim) for each pair of a query and a key that it sees, documents left aside.
double attention_flops(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask);

/// Attention to more keys: `out` and `log_sum_exp` (as attention_forward makes them, out in the dtype of log_sum_exp and in any
/// strides) become those over the keys of both. Rows must have seen a key before; those of `part` need not.
void merge_attention(const at::Tensor& out, const at::Tensor& log_sum_exp, const AttentionOutput& part);

/// Bytes of the work areas that the fused CPU kernels take besides their results, for causal training on rows of `seq` tokens in fp32 or
/// bf16, or on `seq` queries that see `keys` keys where that is not 0.
struct AttentionScratch {
  int64_t forward_bytes = 0, backward_bytes = 0;
};
AttentionScratch attention_scratch(int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim, at::ScalarType dtype,
                                   int64_t keys = 0);

namespace reference {

// The same by ATen operations with an explicit mask: any floating dtype, any device. In fp64 it is the oracle.
AttentionOutput attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ScoreRule& rule,
                                  const AttentionMask& mask);
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                                                  const at::Tensor& v, const at::Tensor& out, const at::Tensor& log_sum_exp,
                                                                  const ScoreRule& rule, const AttentionMask& mask);

}  // namespace reference
}  // namespace ingot::kernels
