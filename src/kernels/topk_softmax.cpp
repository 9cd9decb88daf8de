#include "kernels/topk_softmax.h"

#include "kernels/cpu/rows_topk_softmax.h"
#include "kernels/reference/reference.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

using Problem = cpu::TopkSoftmaxProblem;

constexpr const char *kForward = "ingot_topk_softmax", *kBackward = "ingot_topk_softmax_backward";

bool is_fused(const at::Tensor& logits, const at::Tensor& bias) {
  return device::is_gpu(logits) && takes_rows(logits, kForward) && logits.scalar_type() == at::kFloat && bias.scalar_type() == at::kFloat &&
         logits.size(1) <= cpu::kMostRouterClasses;
}

Problem problem_of(int64_t rows, int64_t classes, int64_t top_k, bool renormalises) {
  Problem p{};
  p.rows = rows, p.classes = classes, p.top_k = top_k, p.renormalises = renormalises;
  return p;
}

int64_t* classes_of(const at::Tensor& choice) { return static_cast<int64_t*>(address(choice)); }

// Chooses, where the bias is defined, into `choice`; else takes it. Returns the weights.
at::Tensor run_forward(const at::Tensor& logits, const at::Tensor& bias, const at::Tensor& choice, bool renormalises) {
  const int64_t rows = logits.size(0);
  auto weight = at::empty(choice.sizes(), logits.options());
  auto p = problem_of(rows, logits.size(1), choice.size(1), renormalises);
  p.chooses = bias.defined();
  const auto bind = [](Problem& p, const RowTensors& t) {
    p.logits = numbers(t.in[0]);
    p.bias = numbers(t.in[1]);
    p.weight = numbers(t.out[0]);
    p.choice = classes_of(p.chooses ? t.out[1] : t.in[2]);
  };
  const RowTensors tensors{{logits, bias, p.chooses ? at::Tensor() : choice}, {weight, p.chooses ? choice : at::Tensor()}, {}};
  run_rows(RowCall<Problem>{"topk_softmax", kForward, tensors, p, bind}, cpu::topk_softmax);
  return weight;
}

// Saves what tells the chosen classes' part in the softmax: the logits, of which probabilities are recomputed, unless weights that sum to
// 1 say everything.
struct TopkSoftmaxFunction : Function<TopkSoftmaxFunction, WorkKind::routing> {
  struct Kept {
    int64_t classes;
    bool renormalises;
  };
  static at::Tensor forward(Context& context, const at::Tensor& logits, const at::Tensor& bias, const at::Tensor& choice,
                            bool renormalises) {
    auto weight = run_forward(logits, bias, choice, renormalises);
    context.save({renormalises ? at::Tensor() : logits, choice, weight});
    context.keep(Kept{logits.size(1), renormalises});
    return weight;
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto saved = context.saved();
    const auto [classes, renormalises] = context.kept<Kept>();
    const auto upstream = grads[0].contiguous();
    const int64_t rows = upstream.size(0);
    auto grad = at::empty({rows, classes}, upstream.options());
    const auto bind = [](Problem& p, const RowTensors& t) {
      p.grad_weight = numbers(t.in[0]);
      p.logits = numbers(t.in[1]);
      p.choice = classes_of(t.in[2]);
      p.weight = numbers(t.in[3]);
      p.grad_logits = numbers(t.out[0]);
    };
    const RowTensors tensors{{upstream, saved[0], saved[1], saved[2]}, {grad}, {}};
    run_rows(RowCall<Problem>{"topk_softmax.backward", kBackward, tensors, problem_of(rows, classes, upstream.size(1), renormalises), bind},
             cpu::topk_softmax_backward);
    return {grad};
  }
};

}  // namespace

TopkSoftmax topk_softmax(const at::Tensor& logits_in, const at::Tensor& bias_in, int64_t top_k, bool renormalises,
                         const ChangeChoice& change) {
  if (!is_fused(logits_in, bias_in)) return reference::topk_softmax(logits_in, bias_in, top_k, renormalises, change);
  const auto logits = logits_in.contiguous(), bias = bias_in.detach().contiguous();
  auto choice = at::empty({logits.size(0), top_k}, logits.options().dtype(at::kLong));
  if (!change) return {TopkSoftmaxFunction::apply(logits, bias, choice, renormalises).flatten(), choice.flatten()};
  run_forward(logits.detach(), bias, choice, renormalises);
  choice = change(choice.flatten()).contiguous();
  return {TopkSoftmaxFunction::apply(logits, at::Tensor(), choice.view({-1, top_k}), renormalises).flatten(), choice};
}

}  // namespace ingot::kernels
