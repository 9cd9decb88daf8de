// Ulysses: one exchange of tokens for heads, attention to whole rows with some of the heads, and one exchange back. Where there are
// fewer kv heads than ranks, several ranks get the same one.
#include "base/error.h"
#include "layers/attention_sinks.h"
#include "parallel/context/attention_spread.h"

namespace ingot::parallel {
namespace {

using layers::Context, layers::Function, layers::TensorList, layers::WorkKind;

// Which heads a rank attends with.
struct Share {
  int64_t ranks, heads, kv_heads;  // of each rank
  int64_t per_kv_head;             // query heads

  Share(int size, int64_t all_heads, int64_t all_kv_heads)
      : ranks(size), heads(all_heads / size), kv_heads(std::max<int64_t>(1, all_kv_heads / size)), per_kv_head(all_heads / all_kv_heads) {}
  int64_t first_kv_head(int64_t rank) const { return rank * heads / per_kv_head; }
  at::Tensor of_rank(const at::Tensor& by_head, int64_t rank) const {
    return by_head.defined() ? by_head.narrow(0, rank * heads, heads) : by_head;
  }
  int64_t width() const { return heads + 2 * kv_heads; }
};

// [size, …], a slice for each rank -> those that the ranks have for this one.
at::Tensor exchanged(const ContextAxis& axis, const at::Tensor& leaving) {
  auto arriving = at::empty_like(leaving);
  axis.group->all_to_all(arriving, leaving);
  return arriving;
}

// [batch, own tokens, all heads, d] -> [size, batch, own tokens, heads, d] and back.
at::Tensor by_head_owner(const at::Tensor& x, const Share& share) {
  return x.unflatten(2, {share.ranks, share.heads}).permute({2, 0, 1, 3, 4}).contiguous();
}
at::Tensor from_head_owners(const at::Tensor& x) { return x.permute({1, 2, 0, 3, 4}).flatten(2, 3).contiguous(); }

struct UlyssesFunction : Function<UlyssesFunction, WorkKind::attention> {
  struct Kept {
    AttentionSpread spread;
    int64_t heads, kv_heads;
  };
  // q, k, v [batch, own tokens, heads or kv_heads, head_dim]
  static at::Tensor forward(Context& context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& all_sinks,
                            const AttentionSpread& spread) {
    context.keep(Kept{spread, q.size(2), k.size(2)});
    const Share share(spread.axis.size, q.size(2), k.size(2));
    auto leaving = at::empty({share.ranks, q.size(0), q.size(1), share.width(), q.size(3)}, q.options());
    for (int64_t r = 0; r < share.ranks; ++r) {
      leaving[r].narrow(2, 0, share.heads).copy_(q.narrow(2, r * share.heads, share.heads));
      leaving[r].narrow(2, share.heads, share.kv_heads).copy_(k.narrow(2, share.first_kv_head(r), share.kv_heads));
      leaving[r].narrow(2, share.heads + share.kv_heads, share.kv_heads).copy_(v.narrow(2, share.first_kv_head(r), share.kv_heads));
    }
    const auto whole = spread.axis.in_order(exchanged(spread.axis, leaving), 1);  // [batch, row, width, head_dim]
    const auto parts = whole.split_with_sizes({share.heads, share.kv_heads, share.kv_heads}, 2);
    const auto [out, log_sum_exp] =
        kernels::attention_forward(parts[0], parts[1], parts[2], spread.rule, spread.mask(0, spread.row(), 0, spread.row()));
    const auto sinks = share.of_rank(all_sinks, spread.axis.rank);
    if (sinks.defined()) layers::see_sinks(out, log_sum_exp, sinks);
    context.save({whole, out, log_sum_exp, all_sinks});
    return from_head_owners(exchanged(spread.axis, spread.axis.by_rank(out, 1)));
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto saved = context.saved();
    const auto &whole = saved[0], &out = saved[1], &log_sum_exp = saved[2];
    const auto& [spread, heads, kv_heads] = context.kept<Kept>();
    const Share share(spread.axis.size, heads, kv_heads);
    const auto grad_out = spread.axis.in_order(exchanged(spread.axis, by_head_owner(grads[0], share)), 1);
    const auto parts = whole.split_with_sizes({share.heads, share.kv_heads, share.kv_heads}, 2);
    const auto [to_q, to_k, to_v] = kernels::attention_backward(grad_out, parts[0], parts[1], parts[2], out, log_sum_exp, spread.rule,
                                                                spread.mask(0, spread.row(), 0, spread.row()));
    at::Tensor grad_sinks;  // of this rank's heads, over whole rows
    if (const auto& all = saved[3]; all.defined()) {
      grad_sinks = at::zeros_like(all);
      const auto sinks = share.of_rank(all, spread.axis.rank);
      share.of_rank(grad_sinks, spread.axis.rank).copy_(layers::gradient_of_sinks(grad_out, out, log_sum_exp, sinks));
    }
    const auto home = exchanged(spread.axis, spread.axis.by_rank(device::cat({to_q, to_k, to_v}, 2), 1));
    const int64_t batch = home.size(1), tokens = home.size(2), d = home.size(4);
    // Added up in the wide type: several ranks may have worked with one kv head.
    auto grad_k = at::zeros({batch, tokens, kv_heads, d}, wide_options(whole)), grad_v = at::zeros_like(grad_k);
    for (int64_t r = 0; r < share.ranks; ++r) {
      grad_k.narrow(2, share.first_kv_head(r), share.kv_heads).add_(home[r].narrow(2, share.heads, share.kv_heads));
      grad_v.narrow(2, share.first_kv_head(r), share.kv_heads).add_(home[r].narrow(2, share.heads + share.kv_heads, share.kv_heads));
    }
    return {from_head_owners(home.narrow(3, 0, share.heads)), grad_k.to(whole.scalar_type()), grad_v.to(whole.scalar_type()), grad_sinks};
  }
};

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& sinks, const AttentionSpread& spread) {
  return UlyssesFunction::apply(q.flatten(1, 2), k.flatten(1, 2), v.flatten(1, 2), sinks, spread);
}

void check_heads(int ranks, int64_t heads, int64_t kv_heads) {
  if (heads % ranks == 0 && (kv_heads % ranks == 0 || ranks % kv_heads == 0)) return;
  throw base::ConfigError(
      "parallel.context_method = ulysses: {} ranks cannot share {} heads with {} kv heads (of this tensor rank); heads must be a "
      "multiple of the ranks, and kv heads a multiple or a divisor. context_method = ring or allgather would work",
      ranks, heads, kv_heads);
}

}  // namespace

const AttentionMethod kUlysses{"ulysses", attend, check_heads, /*channels=*/0};

}  // namespace ingot::parallel
