#include "layers/cca_attention.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "layers/linear.h"

namespace ingot::layers {
namespace {

// The last two latents and the last delayed value of everything seen so far.
kernels::CcaTail next_tail(const at::Tensor& packed, const kernels::CcaShape& shape, const kernels::CcaTail& before) {
  const int64_t seq = packed.size(1);
  const auto wide = packed.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  auto latent = packed.narrow(2, 0, shape.latent()).to(wide);
  if (seq < 2) {
    const auto older = before.latent.defined() ? before.latent.narrow(1, 1, 1) : at::zeros_like(latent);
    latent = device::cat({older, latent}, 1);
  }
  return {latent.narrow(1, latent.size(1) - 2, 2).contiguous(),
          packed.select(1, seq - 1).narrow(1, shape.latent() + shape.current_values(), shape.delayed_values()).to(wide).contiguous()};
}

// Of tokens that follow those of the cache.
void remember(const at::Tensor& packed, const kernels::CcaShape& shape, AttentionCache& cache) {
  const auto before = cache.tail;
  cache.tail = next_tail(packed, shape, before);
  cache.tail_without = [packed, before, shape](int64_t tokens) {
    const int64_t left = packed.size(1) - tokens;
    if (left < 0) throw base::ModelError("only tokens of the last pass can be taken back");
    return left > 0 ? next_tail(packed.narrow(1, 0, left), shape, before) : before;
  };
}

// cca_mix where the tokens before a chunk are another rank's: q, k, v, each [batch, chunks, chunk length, its heads, head_dim].
std::array<at::Tensor, 3> mixed_over_ranks(const at::Tensor& packed, const ContextSchedule& context, const kernels::CcaShape& shape,
                                           const kernels::CcaWeights& weights, const kernels::RotaryTable& table,
                                           const at::Tensor& is_start) {
  const auto [q, k, v] = kernels::cca_mix(context.with_halo(packed, kCcaHalo), shape, weights, table, is_start, {});
  const auto body = [&](const at::Tensor& t) {
    return t.narrow(1, kCcaHalo, t.size(1) - kCcaHalo).unflatten(0, {packed.size(0), context.order().chunks()});
  };
  return {body(q), body(k), body(v)};
}

// cca_mix of rows with drafts: q, k, v, each [batch, tokens and drafts, its heads, head_dim]. The drafts of a block look back at the tokens
// before it.
std::array<at::Tensor, 3> mixed_with_drafts(const at::Tensor& packed, Sequences& sequences, const kernels::CcaShape& shape,
                                            const kernels::CcaWeights& weights, const RotarySettings& rotary, at::ScalarType dtype) {
  auto& tokens = *sequences.drafts()->tokens;
  const auto& rows = sequences.drafts()->rows_behind(kCcaHalo);
  const auto& all = sequences.rotary(rotary, dtype);
  const auto in_rows = [&](const at::Tensor& x) {
    return x.expand({packed.size(0), -1, -1}).flatten(0, 1).index_select(0, rows.from).unsqueeze(0);
  };
  const auto [q, k, v] =
      kernels::cca_mix(packed.narrow(1, 0, tokens.seq()), shape, weights, tokens.rotary(rotary, dtype), tokens.is_start(), {});
  const auto [draft_q, draft_k, draft_v] =
      kernels::cca_mix(in_rows(packed), shape, weights, {in_rows(all.cosine), in_rows(all.sine)}, rows.is_start, {});
  const auto behind = [&](const at::Tensor& of_tokens, const at::Tensor& of_drafts) {
    return device::cat({of_tokens, of_drafts.squeeze(0).index_select(0, rows.drafts).view(of_tokens.sizes())}, 1);
  };
  return {behind(q, draft_q), behind(k, draft_k), behind(v, draft_v)};
}

}  // namespace

at::Tensor CcaAttention::operator()(const at::Tensor& x, Sequences& sequences, const Caches<AttentionCache>& caches) const {
  const auto packed = linear(x, {q, k, current_value, delayed_value});
  const auto rule = of_all_ranks().rule;
  const auto weights = mixing();
  if (const auto& context = sequences.context()) {
    auto& haloed = sequences.haloed(kCcaHalo);
    const auto [queries, keys, values] =
        mixed_over_ranks(packed, *context, shape, weights, haloed.rotary(rotary, x.scalar_type()), haloed.is_start());
    return linear(context->attention(queries, keys, values, {}, rule, window, sequences).flatten(2), {o});
  }
  if (sequences.drafts()) {
    const auto [queries, keys, values] = mixed_with_drafts(packed, sequences, shape, weights, rotary, x.scalar_type());
    return linear(attention(queries, keys, values, rule, window, sequences, {}), {o});
  }
  const auto& table = sequences.rotary(rotary, x.scalar_type());
  const auto mixed = by_part(
      sequences, caches, {packed, table.cosine, table.sine}, [&](Sequences& own, AttentionCache* cache, const std::vector<at::Tensor>& in) {
        const kernels::CcaTail tail = cache ? cache->tail : kernels::CcaTail{};
        const auto [queries, keys, values] = kernels::cca_mix(in[0], shape, weights, {in[1], in[2]}, own.is_start(), tail);
        if (cache) remember(in[0], shape, *cache);
        return attention(queries, keys, values, rule, window, own, cache ? Caches(cache->key_values) : Caches<KeyValueCache>());
      });
  return linear(mixed, {o});
}

AttentionLayer::Heads CcaAttention::of_all_ranks() const {
  return {shape.heads, shape.kv_heads, shape.head_dim, window, 1 / std::sqrt(static_cast<double>(shape.head_dim))};
}

kernels::CcaWeights CcaAttention::mixing() const {
  return {depthwise_weight->value, depthwise_bias->value, grouped_weight->value, grouped_bias->value, temperature->value};
}

kernels::CcaShape CcaAttention::shape_of(int owner, int ranks) const {
  // The first half of all value channels comes from the token itself: of a rank's value heads all, some or none.
  const auto values = tensor::share_of(shape.values(), owner, ranks);
  const int64_t half = shape.values() / 2;
  return {shape.heads / ranks, shape.kv_heads / ranks, shape.head_dim, std::min(values.end, half) - std::min(values.begin, half)};
}

std::vector<tensor::Shape> CcaAttention::shapes(int owner, int ranks) const {
  std::vector<tensor::Shape> shapes;
  for (const auto* weight : projections()) shapes.push_back(weight->value.sizes().vec());
  shapes[2][0] = shape_of(owner, ranks).current_values();
  shapes[3][0] = shape_of(owner, ranks).delayed_values();
  return shapes;
}

AttentionLayer::Projection CcaAttention::projection(Sequences& sequences, at::ScalarType dtype, int ranks) const {
  auto& haloed = sequences.haloed(kCcaHalo);
  return [this, ranks, context = sequences.context(), table = haloed.rotary(rotary, dtype), is_start = haloed.is_start()](
             const at::Tensor& in, const Visit& visit) {
    const auto& w = visit.shards[0];
    const kernels::CcaWeights weights{w[4]->value, w[5]->value, w[6]->value, w[7]->value, w[8]->value};
    return mixed_over_ranks(linear(in, {w[0], w[1], w[2], w[3]}), *context, shape_of(visit.first, ranks), weights, table, is_start);
  };
}

std::array<at::Tensor, 3> CcaAttention::project_new(const at::Tensor& x, Sequences& sequences, const Caches<AttentionCache>& caches,
                                                    int rank, int ranks, const Gather& gather) const {
  const auto own = shape_of(rank, ranks);
  const auto packed = linear(x, {q, k, current_value, delayed_value});
  const auto& table = sequences.rotary(rotary, x.scalar_type());
  const auto mixed = by_part(sequences, caches, {packed, table.cosine, table.sine},
                             [&](Sequences&, AttentionCache* cache, const std::vector<at::Tensor>& in) {
                               const auto [queries, keys, values] = kernels::cca_mix(in[0], own, mixing(), {in[1], in[2]}, {}, cache->tail);
                               remember(in[0], own, *cache);
                               return device::cat({queries, keys, values}, 2);  // by head
                             });
  const auto split = mixed.split_with_sizes({own.heads, own.kv_heads, own.kv_heads}, 2);
  const auto all = gather({split[0].flatten(2), split[1].flatten(2), split[2].flatten(2)});
  const auto by_head = [&](const at::Tensor& t) { return t.unflatten(2, {-1, shape.head_dim}); };
  return {by_head(all[0]), by_head(all[1]), by_head(all[2])};
}

}  // namespace ingot::layers
