// Attention with gathered keys and values. The kv heads go in groups: while one group is attended to, the next ones' keys and
// values arrive. Backward gathers them again; the gradients of a group are reduce-scattered while the next is worked on.
#include <algorithm>

#include "parallel/context/attention_spread.h"

namespace ingot::parallel {
namespace {

using layers::Context, layers::Function, layers::TensorList, layers::WorkKind;

constexpr int64_t kGroups = 4;  // of kv heads, at most: more hide more of the first gather, and make smaller messages

// Keys and values of some kv heads, on their way here from all ranks.
class Gathering {
 public:
  Gathering(const ContextAxis& axis, const at::Tensor& own)
      : axis_(axis), all_(at::empty(shape(axis, own), own.options())), work_(axis.group->start_all_gather(all_, own)) {}
  // [2, batch, tokens of a row, heads, head_dim]
  at::Tensor wait() {
    work_.wait();
    return axis_.in_order(all_, 2);
  }

 private:
  static std::vector<int64_t> shape(const ContextAxis& axis, const at::Tensor& own) {
    auto sizes = own.sizes().vec();
    sizes.insert(sizes.begin(), axis.size);
    return sizes;
  }
  const ContextAxis& axis_;
  at::Tensor all_;
  comm::Work work_;
};

struct Heads {
  int64_t first, count;
};

std::vector<Heads> groups_of(int64_t kv_heads) {
  const int64_t groups = allgather_groups(kv_heads);
  std::vector<Heads> all;
  for (int64_t g = 0; g < groups; ++g) all.push_back({kv_heads * g / groups, kv_heads * (g + 1) / groups - kv_heads * g / groups});
  return all;
}

// Visits the groups of kv heads with their keys and values of whole rows.
template <class Visit>
void for_each_group(const AttentionSpread& spread, const at::Tensor& k, const at::Tensor& v, const Visit& visit) {
  const auto groups = groups_of(k.size(3));
  const auto gather = [&](const Heads& heads) {
    // [2, batch, own tokens, heads, head_dim]
    const auto own = at::stack({k.narrow(3, heads.first, heads.count), v.narrow(3, heads.first, heads.count)}).flatten(2, 3);
    return std::make_unique<Gathering>(spread.axis, own);
  };
  auto next = gather(groups.front());
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto now = std::move(next);
    if (g + 1 < groups.size()) next = gather(groups[g + 1]);
    visit(groups[g], now->wait());
  }
}

struct AllGatherFunction : Function<AllGatherFunction, WorkKind::attention> {
  static at::Tensor forward(Context& context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& sinks,
                            const AttentionSpread& spread) {
    context.keep(spread);
    const auto& axis = spread.axis;
    const int64_t per_kv_head = q.size(3) / k.size(3);
    auto out = at::empty(q.sizes(), q.options());
    auto log_sum_exp = at::empty({axis.chunks(), q.size(0), q.size(3), spread.length}, wide_options(q));
    for_each_group(spread, k, v, [&](const Heads& heads, const at::Tensor& all) {
      const int64_t first = heads.first * per_kv_head, count = heads.count * per_kv_head;
      for (int i = 0; i < axis.chunks(); ++i) {
        const int64_t begin = spread.begin(axis.chunk(axis.rank, i)), keys = begin + spread.length;
        const auto part = kernels::attention_forward(q.select(1, i).narrow(2, first, count), all[0].narrow(1, 0, keys),
                                                     all[1].narrow(1, 0, keys), spread.rule, spread.mask(begin, spread.length, 0, keys));
        out.select(1, i).narrow(2, first, count).copy_(part.out);
        log_sum_exp[i].narrow(1, first, count).copy_(part.log_sum_exp);
      }
    });
    see_sinks(out, log_sum_exp, sinks);
    context.save({q, k, v, out, log_sum_exp, sinks});
    return out;
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto& spread = context.kept<AttentionSpread>();
    const auto& axis = spread.axis;
    const auto saved = context.saved();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &log_sum_exp = saved[4];
    const auto grad_out = grads[0].contiguous();
    const int64_t per_kv_head = q.size(3) / k.size(3);
    auto grad_q = at::empty(q.sizes(), q.options()), grad_k = at::empty(k.sizes(), k.options()), grad_v = at::empty_like(grad_k);
    struct Scattering {
      Heads heads;
      at::Tensor own;  // [2, batch, own tokens, heads, head_dim]
      comm::Work work;
    };
    std::vector<Scattering> scatterings;
    for_each_group(spread, k, v, [&](const Heads& heads, const at::Tensor& all) {
      const int64_t first = heads.first * per_kv_head, count = heads.count * per_kv_head;
      auto sums = at::zeros(all.sizes(), wide_options(q));
      for (int i = 0; i < axis.chunks(); ++i) {
        const int64_t begin = spread.begin(axis.chunk(axis.rank, i)), keys = begin + spread.length;
        const auto part = [&](const at::Tensor& x) { return x.select(1, i).narrow(2, first, count); };
        const auto [to_q, to_k, to_v] = kernels::attention_backward(
            part(grad_out), part(q), all[0].narrow(1, 0, keys), all[1].narrow(1, 0, keys), part(out),
            log_sum_exp[i].narrow(1, first, count).contiguous(), spread.rule, spread.mask(begin, spread.length, 0, keys));
        part(grad_q).copy_(to_q);
        sums[0].narrow(1, 0, keys).add_(to_k);
        sums[1].narrow(1, 0, keys).add_(to_v);
      }
      const auto by_rank = axis.by_rank(sums.to(k.scalar_type()), 2);
      auto& scattering = scatterings.emplace_back(heads, at::empty(by_rank.sizes().slice(1), by_rank.options()), comm::Work());
      scattering.work = axis.group->start_reduce_scatter(scattering.own, by_rank);
    });
    for (auto& [heads, own, work] : scatterings) {
      work.wait();
      const auto by_chunk = own.unflatten(2, {axis.chunks(), spread.length});
      grad_k.narrow(3, heads.first, heads.count).copy_(by_chunk[0]);
      grad_v.narrow(3, heads.first, heads.count).copy_(by_chunk[1]);
    }
    return {grad_q, grad_k, grad_v, gradient_of_sinks(grad_out, out, log_sum_exp, saved[5])};
  }
};

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& sinks, const AttentionSpread& spread) {
  return AllGatherFunction::apply(q, k, v, sinks, spread).flatten(1, 2);
}

}  // namespace

int64_t allgather_groups(int64_t kv_heads) { return std::min(kv_heads, kGroups); }

const AttentionMethod kAllGather{"allgather", attend, nullptr, /*channels=*/0};

}  // namespace ingot::parallel
