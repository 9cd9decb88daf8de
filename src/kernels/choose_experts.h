// Which experts a token goes to, and with which weights, of a router's logits: the rules of the common families in one place.
#pragma once

#include "kernels/topk_softmax.h"

namespace ingot::kernels {

/// What a logit goes through: a softmax over all classes (Mixtral, OLMoE, Qwen), or a sigmoid of its own (DeepSeek-V3).
enum class RouterScore { softmax, sigmoid };

struct ExpertRule {
  RouterScore score = RouterScore::softmax;
  int64_t top_k = 1;
  bool renormalises = false;  // the weights of a token's experts sum to 1, or to scale
  double scale = 1;           // of all weights
  // Of `groups` of neighbouring experts only the `top_groups` with the largest sums of their two best scores are chosen from.
  int64_t groups = 1, top_groups = 1;
};

/// logits [tokens, classes], bias [classes]. Chosen are the top_k best of score + bias within the groups; the bias does not enter weights.
TopkSoftmax choose_experts(const at::Tensor& logits, const at::Tensor& bias, const ExpertRule& rule, const ChangeChoice& change = {});

}  // namespace ingot::kernels
