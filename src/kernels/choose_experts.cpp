// Algorithm: the fused kernel where a plain softmax chooses (topk_softmax.h); else ATen operations, whose traffic, a few passes over
// [tokens, classes], is small beside one expert's GEMM.
#include "kernels/choose_experts.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

namespace ingot::kernels {
namespace {

// `scores` [tokens, classes] with those of groups that a token does not choose at -inf.
at::Tensor within_best_groups(const at::Tensor& scores, const ExpertRule& rule) {
  const auto grouped = scores.unflatten(1, {rule.groups, -1});
  const auto best = std::get<0>(grouped.topk(std::min<int64_t>(2, grouped.size(2)), -1)).sum(-1);
  const auto chosen = std::get<1>(best.topk(rule.top_groups, -1));
  const auto hidden = at::ones_like(best, best.options().dtype(at::kBool)).scatter_(1, chosen, false);
  return grouped.masked_fill(hidden.unsqueeze(-1), -std::numeric_limits<double>::infinity()).flatten(1);
}

}  // namespace

TopkSoftmax choose_experts(const at::Tensor& logits, const at::Tensor& bias, const ExpertRule& rule, const ChangeChoice& change) {
  const auto scaled = [&](TopkSoftmax chosen) {
    if (rule.scale != 1) chosen.weight = chosen.weight * rule.scale;
    return chosen;
  };
  if (rule.score == RouterScore::softmax && rule.groups == rule.top_groups)
    return scaled(topk_softmax(logits, bias, rule.top_k, rule.renormalises, change));
  const auto scores = rule.score == RouterScore::sigmoid ? logits.sigmoid() : logits.softmax(-1);
  at::Tensor choice;
  {
    const at::NoGradGuard no_grad;
    auto biased = scores + bias;
    if (rule.groups != rule.top_groups) biased = within_best_groups(biased, rule);
    choice = std::get<1>(biased.topk(rule.top_k, -1)).flatten();
    if (change) choice = change(choice);
  }
  auto weight = scores.gather(1, choice.view({-1, rule.top_k}));
  // Sigmoids may all be about 0, as DeepSeek-V3 guards against.
  if (rule.renormalises) weight = weight / (weight.sum(-1, /*keepdim=*/true) + 1e-20);
  return scaled({weight.flatten(), choice});
}

}  // namespace ingot::kernels
