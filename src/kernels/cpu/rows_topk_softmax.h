// Which classes a router chooses for each row of its logits, and the weights that it gives them.
#pragma once

#include "kernels/cpu/rows.h"

namespace ingot::kernels::cpu {

/// Chosen are the top_k best of softmax(logits) + bias, best first, equal ones in the order of their classes; a NaN is best. A weight is
/// the chosen class's probability, divided by the sum of the row's where `renormalises`.
struct TopkSoftmaxProblem {
  int64_t rows, classes, top_k;
  bool renormalises, chooses;  // chooses: else `choice` is given, in which a class may come twice
  const float* logits;         // [rows, classes]; backward reads them unless it renormalises
  const float* bias;           // [classes], of the choice alone
  int64_t* choice;             // [rows, top_k]
  float* weight;               // [rows, top_k]; backward reads both
  const float* grad_weight;    // [rows, top_k]
  float* grad_logits;          // [rows, classes]
};
constexpr int64_t kMostRouterClasses = 512;

INGOT_ROW_KERNEL(topk_softmax, const TopkSoftmaxProblem&, int64_t begin, int64_t end);
INGOT_ROW_KERNEL(topk_softmax_backward, const TopkSoftmaxProblem&, int64_t begin, int64_t end);

}  // namespace ingot::kernels::cpu
