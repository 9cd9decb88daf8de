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

// Of kRows rows a class is chosen at a time: each choice waits for the one before it in its row.
constexpr int64_t kRows = 4;

// Scores, up to a whole vector: NaN is none.
INGOT_INLINE void score(const float* terms, float sum, const float* bias, int64_t classes, float* scores) {
  for_vectors(classes, [&](int64_t i, auto n) {
    Float x = load_some(terms + i, n) / sum + load_some(bias + i, n);
    x = x != x ? broadcast(__builtin_inff()) : x;
    store(scores + i, n < kLanes ? (lane_index() < static_cast<int32_t>(n) ? x : broadcast(__builtin_nanf(""))) : x);
  });
}

// The class of the largest score, the first of several. That of the class `before` is taken out first.
INGOT_INLINE int64_t choose(float* scores, int64_t classes, int64_t before) {
  const Int lane = lane_index();
  Float top = broadcast(-__builtin_inff());
  for (int64_t i = 0; i < classes; i += kLanes) {
    Float x = load(scores + i);
    x = lane == static_cast<int32_t>(before - i) ? broadcast(__builtin_nanf("")) : x;
    store(scores + i, x);
    top = max(x, top);
  }
  top = max_of_lanes(top);
  const Float least = broadcast(-__builtin_inff()), backwards = -__builtin_convertvector(lane, Float);
  Float first = least;
  for (int64_t i = 0; i < classes; i += kLanes) first = max(load(scores + i) == top ? backwards - static_cast<float>(i) : least, first);
  return -static_cast<int64_t>(max_of_lanes(first)[0]);
}

INGOT_INLINE void topk_softmax_of_rows(const TopkSoftmaxProblem& p, int64_t row, int64_t rows) {
  float terms[kRows][kMostRouterClasses], scores[kRows][kMostRouterClasses], sum[kRows];
  int64_t* const choice = p.choice + row * p.top_k;
  for (int64_t r = 0; r < rows; ++r) {
    sum[r] = exponentials(p.logits + (row + r) * p.classes, p.classes, terms[r]);
    if (p.chooses) score(terms[r], sum[r], p.bias, p.classes, scores[r]);
  }
  for (int64_t k = 0; p.chooses && k < p.top_k; ++k)
    for (int64_t r = 0; r < rows; ++r) {
      int64_t* const next = choice + r * p.top_k + k;
      *next = choose(scores[r], p.classes, k > 0 ? next[-1] : -1);
    }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t* const chosen = choice + r * p.top_k;
    float* const weight = p.weight + (row + r) * p.top_k;
    float of_chosen = 0;
    for (int64_t k = 0; k < p.top_k; ++k) of_chosen += terms[r][chosen[k]];
    for (int64_t k = 0; k < p.top_k; ++k) weight[k] = terms[r][chosen[k]] / (p.renormalises ? of_chosen : sum[r]);
  }
}

}  // namespace

void topk_softmax(const TopkSoftmaxProblem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; row += kRows) topk_softmax_of_rows(p, row, smaller(kRows, end - row));
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
