#include "layers/score_clip.h"

#include <limits>

namespace ingot::layers {

at::Tensor no_scores_yet(int64_t heads, at::Device device) {
  return at::full({heads}, -std::numeric_limits<double>::infinity(), at::TensorOptions().dtype(at::kFloat).device(device));
}

std::vector<RowFactors> clip_heads(const at::Tensor& gamma, int64_t kv_heads, int64_t head_dim, const std::vector<Parameter*>& of_queries,
                                   const std::vector<Parameter*>& of_keys) {
  const auto by_group = gamma.view({kv_heads, -1});
  const auto keys = by_group.amin(1).sqrt(), queries = (by_group / keys.unsqueeze(1)).flatten();
  std::vector<RowFactors> all;
  const auto add = [&](const std::vector<Parameter*>& parameters, const at::Tensor& of_heads) {
    for (auto* p : parameters)
      if (p) all.push_back({p, of_heads.repeat_interleave(head_dim)});
  };
  add(of_queries, queries);
  add(of_keys, keys);
  return all;
}

}  // namespace ingot::layers
