#include "kernels/qk_norm.h"

#include "base/work_scope.h"
#include "kernels/cpu/rows_qk_norm.h"
#include "kernels/differentiable.h"
#include "kernels/norm.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

struct Shape {
  int64_t heads, kv_heads, head_dim;
  double eps;
  int64_t channels() const { return (heads + kv_heads) * head_dim; }  // of q and k
};

using Problem = cpu::QkNormProblem;

constexpr const char *kForward = "ingot_qk_norm_forward", *kBackward = "ingot_qk_norm_backward";

Problem problem_of(const at::Tensor& packed, const Shape& s, const at::Tensor& q_weight, const at::Tensor& k_weight,
                   const at::Tensor& cosine) {
  Problem p{};
  p.rows = packed.size(0) * packed.size(1);
  p.head_dim = s.head_dim;
  p.half = cosine.size(-1);
  p.table_rows = cosine.size(0) * cosine.size(1);
  p.kv_heads = s.kv_heads;
  p.is_bf16 = packed.scalar_type() == at::kBFloat16;
  p.eps = s.eps;
  p.q.heads = s.heads;
  p.q.run = q_weight.size(0);
  p.k.heads = s.kv_heads;
  p.k.run = k_weight.size(0);
  return p;
}

// What both passes read: weights of q and k, cosine, sine.
void bind_operands(Problem& p, TensorList::const_iterator of) {
  p.q.weight = numbers(of[0]);
  p.k.weight = numbers(of[1]);
  p.cosine = numbers(of[2]);
  p.sine = numbers(of[3]);
}

// Saves the projection, of which v is a part, and the runs' 1 / rms. The gradient turns the other way, then goes through the norm.
struct QkNormFunction : Function<QkNormFunction, WorkKind::attention> {
  static TensorList forward(Context& context, const at::Tensor& packed_in, const at::Tensor& q_weight_in, const at::Tensor& k_weight_in,
                            const at::Tensor& cosine, const at::Tensor& sine, const Shape& s) {
    const auto packed = packed_in.contiguous(), q_weight = q_weight_in.contiguous(), k_weight = k_weight_in.contiguous();
    const auto p = problem_of(packed, s, q_weight, k_weight, cosine);
    const int64_t batch = packed.size(0), seq = packed.size(1);
    auto q = at::empty({batch, seq, s.heads, s.head_dim}, packed.options()),
         k = at::empty({batch, seq, s.kv_heads, s.head_dim}, packed.options());
    auto inverse = at::empty({batch, seq, p.q.runs(p.head_dim) + p.k.runs(p.head_dim)}, packed.options().dtype(at::kFloat));
    const auto bind = [](Problem& p, const RowTensors& t) {
      p.packed = address(t.in[0]);  // of which the trace sees q and k
      bind_operands(p, t.in.begin() + 1);
      p.q.split = address(t.out[0]);
      p.k.split = address(t.out[1]);
      p.inverse = numbers(t.out[2]);
    };
    const RowTensors tensors{{packed.narrow(-1, 0, s.channels()), q_weight, k_weight, cosine, sine}, {q, k, inverse}, {}};
    run_rows(RowCall<Problem>{"split_norm_and_rotate", kForward, tensors, p, bind}, cpu::qk_norm_forward);
    context.save({packed, q_weight, k_weight, cosine, sine, inverse});
    context.keep(s);
    return {q, k, packed.narrow(-1, s.channels(), s.kv_heads * s.head_dim).unflatten(-1, {s.kv_heads, s.head_dim})};
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto saved = context.saved();
    const auto& s = context.kept<Shape>();
    const auto &packed = saved[0], &q_weight = saved[1], &k_weight = saved[2], &inverse = saved[5];
    const auto q = grads[0].contiguous(), k = grads[1].contiguous(), v = grads[2].contiguous();
    auto grad = at::empty_like(packed);
    const auto p = problem_of(packed, s, q_weight, k_weight, saved[3]);
    const auto bind = [](Problem& p, const RowTensors& t) {
      p.q.split = address(t.in[0]);
      p.k.split = address(t.in[1]);
      p.grad_v = address(t.in[2]);
      p.packed = address(t.in[3]);
      bind_operands(p, t.in.begin() + 4);
      p.inverse = numbers(t.in[8]);
      p.grad_packed = address(t.out[0]);
    };
    const RowTensors tensors{{q, k, v, packed.narrow(-1, 0, s.channels()), q_weight, k_weight, saved[3], saved[4], inverse}, {grad}, {}};
    const RowCall<Problem> call{"split_norm_and_rotate.backward", kBackward, tensors, p, bind};
    const auto sums = run_and_sum_rows(call, cpu::qk_norm_backward, 1, 1, p.q.run + p.k.run)[0];
    return {grad, sums.narrow(0, 0, p.q.run), sums.narrow(0, p.q.run, p.k.run)};
  }
};

// A GPU's kernels take heads that are normed by themselves.
bool is_fused(const at::Tensor& packed, const QkNorm& norm, const RotaryTable& table, int64_t head_dim) {
  const bool is_by_head = norm.q_weight.size(0) == head_dim && norm.k_weight.size(0) == head_dim && head_dim <= cpu::kMostHeadDimOfQkNorm;
  return takes_rows(packed, kForward) && (device::is_cpu(packed) || is_by_head) && norm.q_weight.scalar_type() == at::kFloat &&
         norm.k_weight.scalar_type() == at::kFloat && table.cosine.scalar_type() == at::kFloat;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> split_norm_and_rotate(const at::Tensor& packed, int64_t heads, int64_t kv_heads,
                                                                     int64_t head_dim, const QkNorm& norm, const RotaryTable& table) {
  if (!norm.q_weight.defined()) return split_and_rotate(packed, heads, kv_heads, head_dim, table);
  const base::WorkScope scope("norm_and_rotate", base::WorkKind::attention);
  if (is_fused(packed, norm, table, head_dim)) {
    const auto parts = QkNormFunction::apply(packed, norm.q_weight, norm.k_weight, table.cosine.contiguous(), table.sine.contiguous(),
                                             Shape{heads, kv_heads, head_dim, norm.eps});
    return {parts[0], parts[1], parts[2]};
  }
  const auto parts = packed.split_with_sizes({heads * head_dim, kv_heads * head_dim, kv_heads * head_dim}, -1);
  const auto normed = [&](const at::Tensor& x, const at::Tensor& weight) {
    return rms_norm(x.unflatten(-1, {-1, weight.size(0)}), weight, norm.eps, x.scalar_type()).flatten(-2);
  };
  return split_and_rotate(device::cat({normed(parts[0], norm.q_weight), normed(parts[1], norm.k_weight), parts[2]}, -1), heads, kv_heads,
                          head_dim, table);
}

}  // namespace ingot::kernels
