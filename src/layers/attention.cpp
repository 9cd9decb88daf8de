#include "layers/attention.h"

#include <limits>

#include "base/work_scope.h"
#include "kernels/attention.h"
#include "kernels/fp32_islands.h"
#include "layers/autograd.h"

namespace ingot::layers {
namespace {

struct AttentionFunction : Function<AttentionFunction, WorkKind::attention> {
  struct Kept {
    double scale;
    int64_t query_offset, window;
    bool has_documents;
  };
  // out [batch, seq, heads, channels] and log_sum_exp [batch, heads, seq] as if every query saw the sink as well: with both, backward is
  // that of a softmax over the keys and the sink.
  static void see_sinks(const at::Tensor& out, const at::Tensor& log_sum_exp, const at::Tensor& sinks) {
    const auto with_sink = at::logaddexp(log_sum_exp, sinks.view({1, -1, 1}).expand_as(log_sum_exp));
    out.mul_((log_sum_exp - with_sink).exp().transpose(1, 2).unsqueeze(-1));
    log_sum_exp.copy_(with_sink);
  }
  static kernels::AttentionMask mask_of(const Kept& kept, const at::Tensor& visible_from, const at::Tensor& document_offsets) {
    return {visible_from, kept.query_offset, kept.window, kept.has_documents, document_offsets};
  }
  static at::Tensor forward(Context& context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& visible_from,
                            const at::Tensor& document_offsets, const at::Tensor& sinks, Kept kept) {
    const auto mask = mask_of(kept, visible_from, document_offsets);
    auto [out, log_sum_exp] = kernels::attention_forward(q, k, v, kept.scale, mask);
    if (sinks.defined()) see_sinks(out, log_sum_exp, sinks);
    context.save({q, k, v, out, log_sum_exp, visible_from, document_offsets, sinks});
    context.keep(kept);
    return out;
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto saved = context.saved();
    const auto kept = context.kept<Kept>();
    const auto mask = mask_of(kept, saved[5], saved[6]);
    auto [grad_q, grad_k, grad_v] =
        kernels::attention_backward(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4], kept.scale, mask);
    at::Tensor grad_sinks;
    if (const auto& sinks = saved[7]; sinks.defined()) {
      // The sink has no value: its score's gradient is -P (grad_out . out), P being its weight.
      const auto weight = (sinks.view({1, -1, 1}) - saved[4]).exp();  // [batch, heads, seq]
      const auto mean = (grads[0].to(weight.scalar_type()) * saved[3]).sum(-1).transpose(1, 2);
      grad_sinks = (weight * mean).sum(at::IntArrayRef({0, 2})).neg_();
    }
    return {grad_q, grad_k, grad_v, at::Tensor(), at::Tensor(), grad_sinks};
  }
};

// The plain composition with the softmax in fp32, differentiated by autograd: see kernels/fp32_islands.h.
at::Tensor attention_with_fp32_softmax(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                                       const at::Tensor& visible_from) {
  const int64_t groups = q.size(2) / k.size(2), seq = q.size(1);
  const auto heads_first = [&](const at::Tensor& x, int64_t repeats) { return x.transpose(1, 2).repeat_interleave(repeats, 1); };
  auto scores = at::matmul(heads_first(q, 1), heads_first(k, groups).transpose(2, 3)) * scale;  // [batch, heads, seq, seq]
  const auto keys = at::arange(seq, q.options().dtype(at::kInt));
  auto hidden = keys.unsqueeze(0).gt(keys.unsqueeze(1)).unsqueeze(0);
  if (visible_from.defined()) hidden = hidden.logical_or(keys.view({1, 1, seq}).lt(visible_from.unsqueeze(2)));
  scores = scores.masked_fill(hidden.unsqueeze(1), -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1, at::kFloat).to(at::kDouble), heads_first(v, groups)).transpose(1, 2);
}

}  // namespace

std::pair<at::Tensor, at::Tensor> KeyValueCache::append(const at::Tensor& k, const at::Tensor& v) {
  const int64_t needed = length + k.size(1);
  if (!keys.defined() || keys.size(1) < needed) {
    const int64_t room = std::max<int64_t>(2 * length, needed + 63);
    const auto larger = [&](const at::Tensor& x) { return at::empty({x.size(0), room, x.size(2), x.size(3)}, x.options()); };
    auto larger_keys = larger(k), larger_values = larger(v);
    if (length > 0) {
      larger_keys.narrow(1, 0, length).copy_(keys.narrow(1, 0, length));
      larger_values.narrow(1, 0, length).copy_(values.narrow(1, 0, length));
    }
    keys = larger_keys;
    values = larger_values;
  }
  keys.narrow(1, length, k.size(1)).copy_(k);
  values.narrow(1, length, v.size(1)).copy_(v);
  length = needed;
  return {keys.narrow(1, 0, length), values.narrow(1, 0, length)};
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale, int64_t window, Sequences& sequences,
                     KeyValueCache* cache, const at::Tensor& sinks) {
  const base::WorkScope scope("attention", base::WorkKind::attention);
  if (const auto& context = sequences.context()) {
    const std::vector<int64_t> by_chunk = {sequences.order().chunks(), q.size(1) / sequences.order().chunks()};
    const auto attended = [&](const at::Tensor& values) {
      return context->attention(q.unflatten(1, by_chunk), k.unflatten(1, by_chunk), values.unflatten(1, by_chunk), scale, window,
                                sequences);
    };
    if (v.size(3) == k.size(3)) return attended(v).flatten(2);
    // Keys and values travel side by side: values of fewer channels are filled up with zeros.
    return attended(at::constant_pad_nd(v, {0, k.size(3) - v.size(3)})).narrow(3, 0, v.size(3)).flatten(2);
  }
  auto keys = k, values = v;
  if (cache) std::tie(keys, values) = cache->append(k, v);
  const auto from = sequences.visible_from(window);
  if (kernels::Fp32Islands::active() && q.scalar_type() == at::kDouble && !cache && !sinks.defined())
    return attention_with_fp32_softmax(q, k, v, scale, from).flatten(2);
  auto out = AttentionFunction::apply(q, keys, values, from, sequences.document_offsets(), sinks,
                                      AttentionFunction::Kept{scale, sequences.offset(), window, sequences.is_start().defined()});
  return out.flatten(2);
}

}  // namespace ingot::layers
