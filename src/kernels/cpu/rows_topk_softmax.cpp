// Which classes a router chooses for each row of its logits, and the weights that it gives them.
#include "kernels/cpu/rows_topk_softmax.h"

#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

// Into `out`: exp(logit - largest). Returns their sum.
INGOT_INLINE float exponentials(const float* logits, int64_t classes, float* out) {
  const int64_t whole = round_down(classes, kLanes);
  Float top = broadcast(-__builtin_inff());
  for (int64_t i = 0; i < whole; i += kLanes) top = max(load(logits + i), top);
  float largest = max_of_lanes(top)[0];
  for (int64_t i = whole; i < classes; ++i) largest = logits[i] > largest ? logits[i] : largest;
  Float sums{};
  for (int64_t i = 0; i < classes; i += kLanes) {
    const int64_t n = classes - i;
    Float e = exp(load_some(logits + i, n) - largest);
    if (n < kLanes) e *= first_lanes(n);
    store_some(out + i, e, n);
    sums += e;
  }
  return sum_of_lanes(sums)[0];
}

// Scores of chosen classes are taken out of `scores`, which are not NaN.
INGOT_INLINE void choose(float* scores, int64_t classes, int64_t* choice, int64_t top_k) {
  bool is_chosen[kMostRouterClasses] = {};
  for (int64_t k = 0; k < top_k; ++k) {
    int64_t best = -1;
    for (int64_t i = 0; i < classes; ++i)
      if (!is_chosen[i] && (best < 0 || scores[i] > scores[best])) best = i;
    is_chosen[best] = true;
    choice[k] = best;
  }
}

}  // namespace

void topk_softmax(const TopkSoftmaxProblem& p, int64_t begin, int64_t end) {
  float terms[kMostRouterClasses], scores[kMostRouterClasses];
  for (int64_t row = begin; row < end; ++row) {
    const float sum = exponentials(p.logits + row * p.classes, p.classes, terms);
    int64_t* const choice = p.choice + row * p.top_k;
    float* const weight = p.weight + row * p.top_k;
    if (p.chooses) {
      for (int64_t i = 0; i < p.classes; ++i) {
        const float score = terms[i] / sum + p.bias[i];
        scores[i] = score != score ? __builtin_inff() : score;
      }
      choose(scores, p.classes, choice, p.top_k);
    }
    float of_chosen = 0;
    for (int64_t k = 0; k < p.top_k; ++k) of_chosen += terms[choice[k]];
    for (int64_t k = 0; k < p.top_k; ++k) weight[k] = terms[choice[k]] / (p.renormalises ? of_chosen : sum);
  }
}

// With `along` the product of the weights and their gradients: a chosen class's logit gets weight * (gradient - along), if the weights are
// not renormalised every other one gets -probability * along.
void topk_softmax_backward(const TopkSoftmaxProblem& p, int64_t begin, int64_t end) {
  float terms[kMostRouterClasses];
  for (int64_t row = begin; row < end; ++row) {
    const int64_t* const choice = p.choice + row * p.top_k;
    const float *const weight = p.weight + row * p.top_k, *const upstream = p.grad_weight + row * p.top_k;
    float* const grad = p.grad_logits + row * p.classes;
    float along = 0;
    for (int64_t k = 0; k < p.top_k; ++k) along += weight[k] * upstream[k];
    for (int64_t i = 0; i < p.classes; ++i) grad[i] = p.renormalises ? 0 : -along;
    for (int64_t k = 0; k < p.top_k; ++k) grad[choice[k]] += p.renormalises ? weight[k] * (upstream[k] - along) : upstream[k];
    if (p.renormalises) continue;
    const float sum = exponentials(p.logits + row * p.classes, p.classes, terms);
    for (int64_t i = 0; i < p.classes; ++i) grad[i] *= terms[i] / sum;
  }
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
