// Direct preference optimisation (Rafailov et al., arXiv 2305.18290): of a pair of answers to one prompt the chosen one is to become more
// likely than the rejected one, compared with how likely both are to a frozen reference, whose log-probabilities are numbers of the data.
//
// Loss of a pair: -log sigmoid(beta h), h = (log p(chosen) - log p(rejected)) - the same of the reference; with label smoothing e
// (Mitchell's conservative DPO) (1 - e) of that and e of the loss of the pair turned round. Answers alone have targets; what both answers
// have in common falls out of the difference.
#pragma once

#include <functional>

#include "layers/head.h"

namespace ingot::layers {

struct PreferenceSettings {
  double beta = 0;  // 0 = no such objective
  double label_smoothing = 0;
  bool is_on() const { return beta > 0; }
};

/// The pairs of some rows, of this rank's tokens.
struct PreferencePairs {
  at::Tensor sign;   // fp64 [batch, own tokens]: 1 in a chosen answer's document, -1 in a rejected one's, 0 in neither
  at::Tensor first;  // int64 [batch, own tokens]: where in the row the token's pair begins; any place where it has none
  at::Tensor
      reference;  // fp64 [batch, tokens of a row]: of the pair that begins there the reference's log p(chosen) - log p(rejected); NaN: none
  bool is_defined() const { return sign.defined(); }
};

/// The sum over pairs, and what weighs each position. `totals`, where it is defined, fp32 [2]: pairs that the model orders as they were
/// chosen, and the sum of beta h, are added to it. `sum` adds up over the ranks that share the rows' tokens; all but one of them pass
/// `counts` = false and get the value 0. On GPUs sums of positions have no fixed order.
Objective preference_loss(const at::Tensor& losses, const PreferencePairs& pairs, const PreferenceSettings& settings,
                          const std::function<void(const at::Tensor&)>& sum, bool counts, const at::Tensor& totals);

}  // namespace ingot::layers
