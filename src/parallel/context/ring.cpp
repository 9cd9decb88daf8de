// Ring attention: after step s a rank has attended to the keys of the rank s places before it. In zigzag order every step costs
// every rank the same: of a rank before it all queries see the first of its two chunks, of a rank behind it the later chunk's
// queries see both.
//
// With two directions half of the kv heads go round the other way. Each message is half as large, and on devices joined pair by pair it
// goes over a link that a single ring leaves idle.
#include "layers/autograd.h"
#include "parallel/context/attention_spread.h"
#include "parallel/rotation.h"

namespace ingot::parallel {
namespace {

using layers::Context, layers::Function, layers::TensorList, layers::WorkKind;

// The kv heads that go round one way: where they are, and where they and the sums of their gradients come from.
struct Direction {
  int64_t first, count;  // kv heads
  bool backwards;
  at::Tensor here{};  // [2, batch, chunks, length, count, head_dim]
  std::optional<Rotation> arriving{}, sums_arriving{};

  /// Whose keys are here after `step` steps.
  int peer(const ContextAxis& axis, int step) const { return (axis.rank + (backwards ? step : axis.size - step)) % axis.size; }
  at::Tensor of_kv(const at::Tensor& x) const { return x.narrow(3, first, count); }
  void start(const ContextAxis& axis) { arriving.emplace(*axis.group, here, at::empty_like(here), backwards); }
  void finish() {
    if (arriving) here = arriving->wait();
    arriving.reset();
  }
};

std::vector<Direction> directions_of(int ways, const at::Tensor& k, const at::Tensor& v) {
  const int64_t heads = k.size(3), half = heads / 2;
  std::vector<Direction> all;
  if (ways == 1 || half == 0) all.push_back({0, heads, false});
  else all = {{0, heads - half, false}, {heads - half, half, true}};
  for (auto& direction : all) direction.here = at::stack({direction.of_kv(k), direction.of_kv(v)});
  return all;
}

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
  struct Kept {
    AttentionSpread spread;
    int ways;
  };
  static at::Tensor forward(Context& context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& sinks,
                            const Kept& kept) {
    context.keep(kept);
    const auto& spread = kept.spread;
    const auto& axis = spread.axis;
    const int64_t per_kv_head = q.size(3) / k.size(3);
    auto out = at::empty(q.sizes(), wide_options(q));
    auto log_sum_exp = at::empty({axis.chunks(), q.size(0), q.size(3), spread.length}, wide_options(q));
    auto directions = directions_of(kept.ways, k, v);
    for (int step = 0; step < axis.size; ++step) {
      if (step + 1 < axis.size)
        for (auto& direction : directions) direction.start(axis);
      for (auto& direction : directions) {
        const int64_t first = direction.first * per_kv_head, count = direction.count * per_kv_head;
        const auto& here = direction.here;
        for_each_pair(spread, direction.peer(axis, step), [&](int i, int j, const kernels::AttentionMask& mask) {
          const auto queries = q.select(1, i).narrow(2, first, count), sum = out.select(1, i).narrow(2, first, count);
          const auto statistics = log_sum_exp[i].narrow(1, first, count);
          const auto part = kernels::attention_forward(queries, here[0].select(1, j), here[1].select(1, j), spread.rule, mask);
          if (step == 0 && i == j) {
            sum.copy_(part.out);
            statistics.copy_(part.log_sum_exp);
          } else {
            kernels::merge_attention(sum, statistics, part);
          }
        });
      }
      for (auto& direction : directions) direction.finish();
    }
    see_sinks(out, log_sum_exp, sinks);
    out = out.to(q.scalar_type());
    context.save({q, k, v, out, log_sum_exp, sinks});
    return out;
  }

  // The gradients of a rank's keys and values go round behind them, one step later, and are home after as many steps as ranks.
  static TensorList backward(Context& context, const TensorList& grads) {
    const auto& [spread, ways] = context.kept<Kept>();
    const auto& axis = spread.axis;
    const auto saved = context.saved();
    const auto &q = saved[0], &k = saved[1], &out = saved[3], &log_sum_exp = saved[4];
    const auto grad_out = grads[0].contiguous(), grad_sinks = gradient_of_sinks(grad_out, out, log_sum_exp, saved[5]);
    const int64_t per_kv_head = q.size(3) / k.size(3);
    auto grad_q = at::zeros(q.sizes(), wide_options(q));
    auto directions = directions_of(ways, k, saved[2]);
    for (int step = 0; step < axis.size; ++step) {
      if (step + 1 < axis.size)
        for (auto& direction : directions) direction.start(axis);
      for (auto& direction : directions) {
        const int64_t first = direction.first * per_kv_head, count = direction.count * per_kv_head;
        const auto& here = direction.here;
        auto sums = at::zeros(here.sizes(), wide_options(q));
        for_each_pair(spread, direction.peer(axis, step), [&](int i, int j, const kernels::AttentionMask& mask) {
          const auto part = [&](const at::Tensor& x) { return x.select(1, i).narrow(2, first, count); };
          const auto [to_q, to_k, to_v] =
              kernels::attention_backward(part(grad_out), part(q), here[0].select(1, j), here[1].select(1, j), part(out),
                                          log_sum_exp[i].narrow(1, first, count).contiguous(), spread.rule, mask);
          part(grad_q).add_(to_q);
          sums[0].select(1, j).add_(to_k);
          sums[1].select(1, j).add_(to_v);
        });
        if (direction.sums_arriving) sums.add_(direction.sums_arriving->wait());
        direction.sums_arriving.emplace(*axis.group, sums, at::empty_like(sums), direction.backwards);
      }
      for (auto& direction : directions) direction.finish();
    }
    if (directions.size() == 1) {
      const auto sums = directions[0].sums_arriving->wait();
      return {grad_q.to(q.scalar_type()), sums[0].to(q.scalar_type()), sums[1].to(q.scalar_type()), grad_sinks};
    }
    auto grad_k = at::empty(k.sizes(), k.options()), grad_v = at::empty(k.sizes(), k.options());
    for (auto& direction : directions) {
      const auto sums = direction.sums_arriving->wait();
      direction.of_kv(grad_k).copy_(sums[0]);
      direction.of_kv(grad_v).copy_(sums[1]);
    }
    return {grad_q.to(q.scalar_type()), grad_k, grad_v, grad_sinks};
  }
};

template <int ways>
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& sinks, const AttentionSpread& spread) {
  return RingFunction::apply(q, k, v, sinks, RingFunction::Kept{spread, ways}).flatten(1, 2);
}

}  // namespace

const AttentionMethod kRing{"ring", attend<1>, nullptr, /*channels=*/2};
const AttentionMethod kBidirectionalRing{"bidirectional_ring", attend<2>, nullptr, /*channels=*/4};

}  // namespace ingot::parallel
