// The softmax cross-entropy of one row of logits.
#pragma once

#include "kernels/cpu/rows.h"

namespace ingot::kernels::cpu {

/// gradient = scale * (softmax * (1 + 2 z_loss log(sum(exp))) - onehot); losses [rows].
struct CrossEntropyProblem {
  int64_t rows, vocab, logits_stride;
  float* logits;           // scratch once they are read, if there is a gradient
  const int64_t* targets;  // negative: ignored
  double scale;
  float* losses;
  void* gradient;  // rows of gradient_stride; null: none is wanted; if fp32 the logits' own place will do
  int64_t gradient_stride;
  bool gradient_is_bf16;
  double z_loss;
};

/// The first half of it where each rank has a part of the vocabulary. statistics [rows, 3]: largest logit, sum of
/// exp(logit - largest), logit of the target (0 when it is not in this part: targets below 0).
struct CrossEntropyPartProblem {
  int64_t rows, vocab, logits_stride;
  float* logits;
  const int64_t* targets;
  float* statistics;
  bool write;  // logits become exp(logit - largest)
};

INGOT_ROW_KERNEL(cross_entropy, const CrossEntropyProblem&, int64_t begin, int64_t end);
INGOT_ROW_KERNEL(cross_entropy_part, const CrossEntropyPartProblem&, int64_t begin, int64_t end);

}  // namespace ingot::kernels::cpu
