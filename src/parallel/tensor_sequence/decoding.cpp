#include "parallel/tensor_sequence/decoding.h"

#include <algorithm>
#include <limits>

#include "device/device.h"
#include "kernels/attention.h"

namespace ingot::parallel {

std::vector<at::Tensor> gather_channels(const std::vector<at::Tensor>& parts, const TensorSequenceAxis& axis) {
  const auto own = device::cat(parts, -1).contiguous();
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

namespace {

// What a query at each of the positions behind `first` sees of a cache's own tokens: those before `end(position)`, int32 [batch, queries].
template <class End>
at::Tensor own_tokens(int64_t batch, int64_t first, int64_t queries, const layers::KeyValueCache& cache, at::Device device,
                      const End& end) {
  std::vector<int32_t> counts;
  for (int64_t i = 0; i < queries; ++i) counts.push_back(static_cast<int32_t>(cache.share().tokens(end(first + i))));
  return device::to_device(at::tensor(counts, at::kInt), device).expand({batch, queries}).contiguous();
}

// Of q [batch, tokens, heads, head_dim] over the tokens that are here, [batch, tokens, heads, head_dim + 1]: each output in front of its
// log-sum-exp.
at::Tensor attend_here(const at::Tensor& q, const kernels::ScoreRule& rule, int64_t window, const layers::Sequences& sequences,
                       const layers::KeyValueCache& cache) {
  const int64_t batch = q.size(0), tokens = q.size(1), d = q.size(3), first = sequences.offset();
  auto partial = at::zeros({batch, tokens, q.size(2), d + 1}, q.options().dtype(q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  const auto pages = cache.pages();
  if (pages.length == 0) {
    partial.select(3, d).fill_(-std::numeric_limits<double>::infinity());
    return partial;
  }
  kernels::AttentionMask mask{.query_offset = pages.length - 1};
  if (tokens > 1) mask.visible_until = own_tokens(batch, first, tokens, cache, q.device(), [](int64_t at) { return at + 1; });
  if (window > 0)
    mask.visible_from =
        own_tokens(batch, first, tokens, cache, q.device(), [&](int64_t at) { return std::max<int64_t>(0, at + 1 - window); });
  const auto here = kernels::paged_attention(q.contiguous(), pages, rule, mask);
  partial.narrow(3, 0, d).copy_(here.out);
  partial.select(3, d).copy_(here.log_sum_exp.transpose(1, 2));
  return partial;
}

}  // namespace

at::Tensor attend_to_spread_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const kernels::ScoreRule& rule,
                                  int64_t window, layers::Sequences& sequences, const layers::Caches<layers::KeyValueCache>& caches,
                                  const TensorSequenceAxis& axis) {
  const int64_t batch = q.size(0), tokens = q.size(1), heads = q.size(2), d = q.size(3);
  const auto partial = layers::by_part(sequences, caches, {q, k, v},
                                       [&](layers::Sequences& own, layers::KeyValueCache* cache, const std::vector<at::Tensor>& in) {
                                         cache->append(in[1], in[2]);
                                         return attend_here(in[0], rule, window, own, *cache);
                                       });
  // A rank's heads lie together.
  const auto by_head = partial.permute({2, 0, 1, 3}).contiguous();
  const auto received = at::empty_like(by_head);
  axis.group->all_to_all(received, by_head);

  const auto by_rank = received.view({axis.size, heads / axis.size, batch, tokens, d + 1});
  const auto weights = at::softmax(by_rank.narrow(4, d, 1), 0);  // a token itself is on one of the ranks: not all are empty
  return (by_rank.narrow(4, 0, d) * weights).sum(0).permute({1, 2, 0, 3}).reshape({batch, tokens, -1}).to(q.scalar_type());
}

}  // namespace ingot::parallel
