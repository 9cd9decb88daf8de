// Ring attention: after step s a rank has attended to the keys of the rank s places before it. In zigzag order every step costs
// every rank the same: of a rank before it all queries see the first of its two chunks, of a rank behind it the later chunk's
// queries see both.
#include "parallel/context/attention_spread.h"
#include "parallel/rotation.h"

namespace ingot::parallel {
namespace {

using layers::Context, layers::Function, layers::TensorList, layers::WorkKind;

int peer_of(const ContextAxis& axis, int step) { return (axis.rank + axis.size - step) % axis.size; }

// visit(i, j, mask) for each of this rank's chunks i and each chunk j of `peer` that it sees something of; its own comes first, so
// that all its queries have seen a key.
template <class Visit>
void for_each_pair(const AttentionSpread& spread, int peer, const Visit& visit) {
  const auto& axis = spread.axis;
  for (int i = 0; i < axis.chunks(); ++i) {
    for (const int j : {i, 1 - i}) {
      if (j < 0 || j >= axis.chunks()) continue;
      const int64_t first_query = spread.begin(axis.chunk(axis.rank, i)), first_key = spread.begin(axis.chunk(peer, j));
      if (spread.sees(axis.chunk(axis.rank, i), first_key, spread.length))
        visit(i, j, spread.mask(first_query, spread.length, first_key, spread.length));
    }
  }
}

struct RingFunction : Function<RingFunction, WorkKind::attention> {
  static at::Tensor forward(Context& context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionSpread& spread) {
    context.keep(spread);
    const auto& axis = spread.axis;
    auto out = at::empty(q.sizes(), wide_options(q));
    auto log_sum_exp = at::empty({axis.chunks(), q.size(0), q.size(3), spread.length}, wide_options(q));
    auto here = at::stack({k, v});  // [2, batch, chunks, length, kv_heads, head_dim]
    for (int step = 0; step < axis.size; ++step) {
      std::optional<Rotation> rotation;
      if (step + 1 < axis.size) rotation.emplace(*axis.group, here, at::empty_like(here));
      for_each_pair(spread, peer_of(axis, step), [&](int i, int j, const kernels::AttentionMask& mask) {
        const auto part = kernels::attention_forward(q.select(1, i), here[0].select(1, j), here[1].select(1, j), spread.scale, mask);
        if (step == 0 && i == j) {
          out.select(1, i).copy_(part.out);
          log_sum_exp[i].copy_(part.log_sum_exp);
        } else {
          kernels::merge_attention(out.select(1, i), log_sum_exp[i], part);
        }
      });
      if (rotation) here = rotation->wait();
    }
    out = out.to(q.scalar_type());
    context.save({q, k, v, out, log_sum_exp});
    return out;
  }

  // The gradients of a rank's keys and values go round behind them, one step later, and are home after as many steps as ranks.
  static TensorList backward(Context& context, const TensorList& grads) {
    const auto& spread = context.kept<AttentionSpread>();
    const auto& axis = spread.axis;
    const auto saved = context.saved();
    const auto &q = saved[0], &out = saved[3], &log_sum_exp = saved[4];
    const auto grad_out = grads[0].contiguous();
    auto grad_q = at::zeros(q.sizes(), wide_options(q));
    auto here = at::stack({saved[1], saved[2]});
    std::optional<Rotation> sums_on_their_way;
    for (int step = 0; step < axis.size; ++step) {
      std::optional<Rotation> rotation;
      if (step + 1 < axis.size) rotation.emplace(*axis.group, here, at::empty_like(here));
      auto sums = at::zeros(here.sizes(), wide_options(q));
      for_each_pair(spread, peer_of(axis, step), [&](int i, int j, const kernels::AttentionMask& mask) {
        const auto [to_q, to_k, to_v] =
            kernels::attention_backward(grad_out.select(1, i), q.select(1, i), here[0].select(1, j), here[1].select(1, j), out.select(1, i),
                                        log_sum_exp[i], spread.scale, mask);
        grad_q.select(1, i).add_(to_q);
        sums[0].select(1, j).add_(to_k);
        sums[1].select(1, j).add_(to_v);
      });
      if (sums_on_their_way) sums.add_(sums_on_their_way->wait());
      sums_on_their_way.emplace(*axis.group, sums, at::empty_like(sums));
      if (rotation) here = rotation->wait();
    }
    const auto sums = sums_on_their_way->wait();
    return {grad_q.to(q.scalar_type()), sums[0].to(q.scalar_type()), sums[1].to(q.scalar_type())};
  }
};

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionSpread& spread) {
  return RingFunction::apply(q, k, v, spread).flatten(1, 2);
}

}  // namespace

const AttentionMethod kRing{"ring", attend, nullptr, /*passes_round=*/true};

}  // namespace ingot::parallel
