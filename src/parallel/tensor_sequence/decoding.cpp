#include "parallel/tensor_sequence/decoding.h"

#include <algorithm>
#include <limits>

#include "kernels/attention.h"

namespace ingot::parallel {

std::vector<at::Tensor> gather_channels(const std::vector<at::Tensor>& parts, const TensorSequenceAxis& axis) {
  const auto own = at::cat(parts, -1).contiguous();
  auto sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), axis.size);
  const auto by_rank = at::empty(sizes, own.options());
  axis.group->all_gather(by_rank, own);
  std::vector<at::Tensor> whole;
  int64_t begin = 0;
  for (const auto& part : parts) {
    whole.push_back(by_rank.narrow(-1, begin, part.size(-1)).permute({1, 2, 0, 3}).flatten(2));
    begin += part.size(-1);
  }
  return whole;
}

at::Tensor attend_to_spread_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const kernels::ScoreRule& rule,
                                  int64_t window, int64_t position, layers::KeyValueCache& cache, const TensorSequenceAxis& axis) {
  const int64_t batch = q.size(0), heads = q.size(2), d = q.size(3);
  if (position % axis.size == axis.rank) {
    cache.append(k, v);
    cache.positions.push_back(position);
  }
  const auto first_seen =
      window > 0 ? std::lower_bound(cache.positions.begin(), cache.positions.end(), position - window + 1) : cache.positions.begin();
  const int64_t first = first_seen - cache.positions.begin(), keys = cache.length() - first;

  // [heads, batch, head_dim + 1]: a rank's heads lie together, each output in front of its log-sum-exp.
  const auto wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  auto partial = at::zeros({heads, batch, d + 1}, q.options().dtype(wide));
  if (keys > 0) {
    kernels::AttentionMask mask{.query_offset = cache.length() - 1};
    if (first > 0) mask.visible_from = at::full({batch, 1}, first, q.options().dtype(at::kInt));
    const auto here = kernels::paged_attention(q.contiguous(), cache.pages(), rule, mask);
    partial.narrow(2, 0, d).copy_(here.out.select(1, 0).transpose(0, 1));
    partial.select(2, d).copy_(here.log_sum_exp.select(2, 0).transpose(0, 1));
  } else {
    partial.select(2, d).fill_(-std::numeric_limits<double>::infinity());
  }
  const auto received = at::empty_like(partial);
  axis.group->all_to_all(received, partial);

  const auto by_rank = received.view({axis.size, heads / axis.size, batch, d + 1});
  const auto weights = at::softmax(by_rank.narrow(3, d, 1), 0);  // the new token is on one of the ranks: not all are empty
  return (by_rank.narrow(3, 0, d) * weights).sum(0).transpose(0, 1).reshape({batch, 1, -1}).to(q.scalar_type());
}

}  // namespace ingot::parallel
