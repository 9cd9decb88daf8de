// QK-clip (Kimi K2, arXiv 2507.20534, section 2.1): where the scores of a head of attention have grown beyond a threshold, the weights of
// its queries and keys are scaled back after the step, by what brings the largest score to the threshold.
//
// What is watched is the largest log-sum-exp of a head's scores, which attention has anyway: not below the largest score, and above it by
// the logarithm of the number of keys at most, by nothing where one score outweighs the others.
#pragma once

#include <vector>

#include "layers/parameter.h"

namespace ingot::layers {

/// What the rows of a matrix or the elements of a vector, as far as they are here, are multiplied by.
struct RowFactors {
  Parameter* parameter = nullptr;
  at::Tensor factors;  // fp64 [local rows], on the host
};

/// What passes raise to the largest scores of heads, fp32 [heads], before there were any.
at::Tensor no_scores_yet(int64_t heads, at::Device device);

/// The factors of q, k and their biases (null: none) under which the scores of head h are multiplied by gamma[h], fp64 [heads] on the
/// host. A kv head takes the root of the smallest gamma of its query heads, and they the rest.
std::vector<RowFactors> clip_heads(const at::Tensor& gamma, int64_t kv_heads, int64_t head_dim, const std::vector<Parameter*>& of_queries,
                                   const std::vector<Parameter*>& of_keys);

}  // namespace ingot::layers
