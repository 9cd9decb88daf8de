// The output head: logits for generation, and the training loss that never holds the whole logits.
// Gradient convention: head_loss computes its gradients in the forward pass, chunk by chunk, while the logits of the chunk
// exist. The weight's gradient goes into Parameter::grad at once, the hidden state's is kept for autograd. So a loss made
// with gradients enabled must be backpropagated exactly once, with gradient 1.
#pragma once

#include <functional>

#include "layers/parameter.h"

namespace ingot::layers {

/// hidden [..., hidden_size], weight [vocab, hidden_size] -> [..., vocab] in fp32 (fp64 for fp64). No gradient.
at::Tensor logits_of(const at::Tensor& hidden, const Parameter& weight);

/// Rows of logits that exist at a time. On a CPU near 16 MiB of fp32, which stays near the caches and is enough for full GEMM speed. A GPU
/// needs more rows for that: near 1 GiB. 256 at least, since each chunk reads the weight and reads and writes its whole gradient: of
/// 131,072 words 32 rows at a time take a CPU 4.7 times as long.
int64_t head_chunk_rows(int64_t rows, int64_t vocab, bool on_gpu);

/// An objective that weighs positions by what the model makes of them, as DPO does (kernels/preference_loss.h).
struct Objective {
  at::Tensor value;    // [], of the loss, as the mean over targets would be
  at::Tensor weights;  // [batch, seq]: its derivative by the loss of each position
};
/// Given -log p(target) of every position, [batch, seq] in the logits' dtype, 0 where there is no target.
using WeighLosses = std::function<Objective(const at::Tensor& losses)>;

/// What logits go through, and what training makes of them.
struct HeadRule {
  double logit_cap = 0;    // they become cap * tanh(logits / cap); 0 = they stay
  double z_loss = 0;       // as in kernels::cross_entropy
  at::Tensor losses{};     // [batch, seq] in the logits' dtype, to be filled with the losses of all positions; may be undefined
  WeighLosses weigh = {};  // empty: all positions alike. Costs the logits a second time
};
/// In place; returns what their gradient must be multiplied by, undefined without a cap or where no gradient is wanted.
at::Tensor cap_logits(at::Tensor logits, double cap, bool want_gradient);

/// kernels::cross_entropy of logits [rows, own vocabulary] where other ranks have the rest of the vocabulary
/// (parallel/tensor/vocabulary.h). Empty: all of it is here.
using CrossEntropy =
    std::function<at::Tensor(at::Tensor logits, const at::Tensor& labels, double scale, const at::Tensor& gradient, double z_loss)>;

/// Sum over all positions of -log p(target), or what rule.weigh makes of them, times `scale`; targets int64 [batch, seq], -100 counts for
/// nothing. Logits are fp32 (fp64 for fp64) and exist for a bounded number of positions at a time.
at::Tensor head_loss(const at::Tensor& hidden, Parameter& weight, const at::Tensor& targets, double scale, const HeadRule& rule = {},
                     const CrossEntropy& cross_entropy = {});

}  // namespace ingot::layers
