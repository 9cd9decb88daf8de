#include "layers/attention.h"

#include <limits>

#include "base/work_scope.h"
#include "kernels/attention.h"
#include "kernels/fp32_islands.h"
#include "layers/attention_sinks.h"
#include "layers/autograd.h"

namespace ingot::layers {
namespace {

// The parts of a mask that are not tensors.
struct MaskNumbers {
  int64_t query_offset = 0, window = 0, block = 1;
  bool has_documents = false;
};

struct MaskTensors {
  at::Tensor visible_from, visible_until, document_offsets;
};

kernels::AttentionMask mask_of(const MaskNumbers& numbers, const MaskTensors& tensors) {
  return {tensors.visible_from,     numbers.query_offset,  numbers.window, numbers.has_documents,
          tensors.document_offsets, tensors.visible_until, numbers.block};
}

void raise(const at::Tensor& largest, const at::Tensor& log_sum_exp) {
  if (largest.defined()) largest.copy_(at::maximum(largest, log_sum_exp.amax(at::IntArrayRef({0, 2})).to(largest.scalar_type())));
}

struct AttentionFunction : Function<AttentionFunction, WorkKind::attention> {
  struct Kept {
    kernels::ScoreRule rule;
    MaskNumbers mask;
    at::Tensor largest;  // undefined: nobody asks
  };
  static at::Tensor forward(Context& context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const MaskTensors& tensors,
                            const at::Tensor& sinks, Kept kept) {
    auto [out, log_sum_exp] = kernels::attention_forward(q, k, v, kept.rule, mask_of(kept.mask, tensors));
    if (sinks.defined()) see_sinks(out, log_sum_exp, sinks);
    raise(kept.largest, log_sum_exp);
    context.save({q, k, v, out, log_sum_exp, tensors.visible_from, tensors.visible_until, tensors.document_offsets, sinks});
    context.keep(kept);
    return out;
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto saved = context.saved();
    const auto& kept = context.kept<Kept>();
    const auto mask = mask_of(kept.mask, {saved[5], saved[6], saved[7]});
    auto [grad_q, grad_k, grad_v] =
        kernels::attention_backward(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4], kept.rule, mask);
    at::Tensor grad_sinks;
    if (const auto& sinks = saved[8]; sinks.defined()) grad_sinks = gradient_of_sinks(grads[0], saved[3], saved[4], sinks);
    return {grad_q, grad_k, grad_v, grad_sinks};
  }
};

// Rows of tokens and behind them their drafts: the tokens see what is before them, the drafts of a block the tokens before it and one
// another. Of drafts the two parts are put together by their log-sum-exps; gradients are sums over the parts.
struct DraftAttentionFunction : Function<DraftAttentionFunction, WorkKind::attention> {
  struct Masks {
    MaskTensors of_tokens, before_block, in_block;
    MaskNumbers numbers, before, in;
  };
  struct Kept {
    kernels::ScoreRule rule;
    std::shared_ptr<const Masks> masks;
    at::Tensor largest;  // undefined: nobody asks
  };

  static at::Tensor forward(Context& context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Kept kept) {
    const auto& m = *kept.masks;
    const auto of_tokens = kernels::attention_forward(tokens(q), tokens(k), tokens(v), kept.rule, mask_of(m.numbers, m.of_tokens));
    const auto own = kernels::attention_forward(drafts(q), drafts(k), drafts(v), kept.rule, mask_of(m.in, m.in_block));
    const auto out = own.out.to(own.log_sum_exp.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    kernels::merge_attention(out, own.log_sum_exp,
                             kernels::attention_forward(drafts(q), tokens(k), tokens(v), kept.rule, mask_of(m.before, m.before_block)));
    raise(kept.largest, of_tokens.log_sum_exp);
    raise(kept.largest, own.log_sum_exp);
    auto both = device::cat({of_tokens.out, out.to(q.scalar_type())}, 1);
    context.save({q, k, v, both, of_tokens.log_sum_exp, own.log_sum_exp});
    context.keep(std::move(kept));
    return both;
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto saved = context.saved();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3];
    const auto& kept = context.kept<Kept>();
    const auto& m = *kept.masks;
    const auto [q1, k1, v1] = kernels::attention_backward(tokens(grads[0]), tokens(q), tokens(k), tokens(v), tokens(out), saved[4],
                                                          kept.rule, mask_of(m.numbers, m.of_tokens));
    const auto [q2, k2, v2] = kernels::attention_backward(drafts(grads[0]), drafts(q), drafts(k), drafts(v), drafts(out), saved[5],
                                                          kept.rule, mask_of(m.in, m.in_block));
    const auto [q3, k3, v3] = kernels::attention_backward(drafts(grads[0]), drafts(q), tokens(k), tokens(v), drafts(out), saved[5],
                                                          kept.rule, mask_of(m.before, m.before_block));
    return {device::cat({q1, q2 + q3}, 1), device::cat({k1 + k3, k2}, 1), device::cat({v1 + v3, v2}, 1)};
  }

 private:
  static at::Tensor tokens(const at::Tensor& x) { return x.narrow(1, 0, x.size(1) / 2); }
  static at::Tensor drafts(const at::Tensor& x) { return x.narrow(1, x.size(1) / 2, x.size(1) / 2); }
};

DraftAttentionFunction::Masks draft_masks(const Sequences::Drafts& drafts, int64_t window) {
  auto& tokens = *drafts.tokens;
  const auto from = tokens.visible_from(window);
  const bool has_documents = tokens.is_start().defined();
  DraftAttentionFunction::Masks masks{
      .of_tokens = {from, {}, tokens.document_offsets()},
      .before_block = {from, drafts.block_begin, {}},
      .in_block = {from.defined() ? at::maximum(from, drafts.block_begin) : drafts.block_begin, drafts.block_end, {}},
      .numbers = {.window = window, .has_documents = has_documents},
      .before = {.query_offset = -drafts.block, .window = window, .block = drafts.block},
      .in = {.window = drafts.block, .block = drafts.block}};
  // Windows behind a block see nothing before it.
  if (from.defined()) masks.before_block.visible_until = at::maximum(drafts.block_begin, from);
  return masks;
}

// The plain composition with the softmax in fp32, differentiated by autograd: see kernels/fp32_islands.h.
at::Tensor attention_with_fp32_softmax(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const kernels::ScoreRule& rule,
                                       const at::Tensor& visible_from) {
  const int64_t groups = q.size(2) / k.size(2), seq = q.size(1);
  const auto heads_first = [&](const at::Tensor& x, int64_t repeats) { return x.transpose(1, 2).repeat_interleave(repeats, 1); };
  auto scores = at::matmul(heads_first(q, 1), heads_first(k, groups).transpose(2, 3)) * rule.scale;  // [batch, heads, seq, seq]
  if (rule.cap > 0) scores = (scores / rule.cap).tanh() * rule.cap;
  const auto keys = at::arange(seq, q.options().dtype(at::kInt));
  auto hidden = keys.unsqueeze(0).gt(keys.unsqueeze(1)).unsqueeze(0);
  if (visible_from.defined()) hidden = hidden.logical_or(keys.view({1, 1, seq}).lt(visible_from.unsqueeze(2)));
  scores = scores.masked_fill(hidden.unsqueeze(1), -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1, at::kFloat).to(at::kDouble), heads_first(v, groups)).transpose(1, 2);
}

// Of whole rows, behind what the cache has.
at::Tensor attention_of_rows(const std::vector<at::Tensor>& heads, const kernels::ScoreRule& rule, int64_t window, Sequences& sequences,
                             KeyValueCache* cache, const at::Tensor& sinks, const at::Tensor& largest) {
  const auto &q = heads[0], &keys = heads[1], &values = heads[2];
  if (cache) cache->append(keys, values);
  const auto from = sequences.visible_from(window), until = sequences.visible_until(window);
  if (kernels::Fp32Islands::active() && q.scalar_type() == at::kDouble && !cache && !sinks.defined() && !until.defined())
    return attention_with_fp32_softmax(q, keys, values, rule, from).flatten(2);
  const MaskNumbers numbers{.query_offset = sequences.offset(),
                            .window = window,
                            .block = until.defined() ? sequences.offset() + sequences.seq() : 1,
                            .has_documents = sequences.is_start().defined()};
  const MaskTensors tensors{from, until, sequences.document_offsets()};
  if (cache && cache->length() > keys.size(1)) {
    const auto [out, log_sum_exp] = kernels::paged_attention(q.contiguous(), cache->pages(), rule, mask_of(numbers, tensors));
    if (sinks.defined()) see_sinks(out, log_sum_exp, sinks);
    raise(largest, log_sum_exp);
    return out.flatten(2);
  }
  return AttentionFunction::apply(q, keys, values, tensors, sinks, AttentionFunction::Kept{rule, numbers, largest}).flatten(2);
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const kernels::ScoreRule& rule, int64_t window,
                     Sequences& sequences, const Caches<KeyValueCache>& caches, const at::Tensor& sinks, const at::Tensor& largest) {
  const base::WorkScope scope("attention", base::WorkKind::attention);
  if (const auto& context = sequences.context()) {
    const std::vector<int64_t> by_chunk = {sequences.order().chunks(), q.size(1) / sequences.order().chunks()};
    const auto attended = [&](const at::Tensor& values) {
      return context->attention(q.unflatten(1, by_chunk), k.unflatten(1, by_chunk), values.unflatten(1, by_chunk), sinks, rule, window,
                                sequences);
    };
    if (v.size(3) == k.size(3)) return attended(v).flatten(2);
    // Keys and values travel side by side: values of fewer channels are filled up with zeros.
    return attended(at::constant_pad_nd(v, {0, k.size(3) - v.size(3)})).narrow(3, 0, v.size(3)).flatten(2);
  }
  if (const auto* drafts = sequences.drafts()) {
    const auto masks = std::make_shared<const DraftAttentionFunction::Masks>(draft_masks(*drafts, window));
    return DraftAttentionFunction::apply(q, k, v, DraftAttentionFunction::Kept{rule, masks, largest}).flatten(2);
  }
  return by_part(sequences, caches, {q, k, v}, [&](Sequences& own, KeyValueCache* cache, const std::vector<at::Tensor>& in) {
    return attention_of_rows(in, rule, window, own, cache, sinks, largest);
  });
}

}  // namespace ingot::layers
