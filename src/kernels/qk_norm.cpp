#include "kernels/qk_norm.h"

#include "base/work_scope.h"
#include "kernels/cpu/rows_parallel.h"
#include "kernels/cpu/rows_qk_norm.h"
#include "kernels/differentiable.h"
#include "kernels/norm.h"

namespace ingot::kernels {
namespace {

struct Shape {
  int64_t heads, kv_heads, head_dim;
  double eps;
  int64_t channels() const { return (heads + kv_heads) * head_dim; }  // of q and k
};

cpu::QkNormProblem problem_of(const at::Tensor& packed, const Shape& s, const at::Tensor& q_weight, const at::Tensor& k_weight,
                              const at::Tensor& cosine, const at::Tensor& sine) {
  cpu::QkNormProblem p{};
  p.rows = packed.size(0) * packed.size(1);
  p.head_dim = s.head_dim;
  p.half = cosine.size(-1);
  p.table_rows = cosine.size(0) * cosine.size(1);
  p.kv_heads = s.kv_heads;
  p.is_bf16 = packed.scalar_type() == at::kBFloat16;
  p.eps = s.eps;
  p.cosine = cpu::floats(cosine);
  p.sine = cpu::floats(sine);
  p.packed = packed.const_data_ptr();
  p.q = {.heads = s.heads, .run = q_weight.size(0), .weight = cpu::floats(q_weight)};
  p.k = {.heads = s.kv_heads, .run = k_weight.size(0), .weight = cpu::floats(k_weight)};
  return p;
}

// Saves the projection, of which v is a part, and the runs' 1 / rms. The gradient turns the other way, then goes through the norm.
struct QkNormFunction : Function<QkNormFunction, WorkKind::attention> {
  static TensorList forward(Context& context, const at::Tensor& packed_in, const at::Tensor& q_weight_in, const at::Tensor& k_weight_in,
                            const at::Tensor& cosine, const at::Tensor& sine, const Shape& s) {
    const auto packed = packed_in.contiguous(), q_weight = q_weight_in.contiguous(), k_weight = k_weight_in.contiguous();
    auto p = problem_of(packed, s, q_weight, k_weight, cosine, sine);
    const int64_t batch = packed.size(0), seq = packed.size(1);
    auto q = at::empty({batch, seq, s.heads, s.head_dim}, packed.options()),
         k = at::empty({batch, seq, s.kv_heads, s.head_dim}, packed.options());
    auto inverse = at::empty({batch, seq, p.q.runs(p.head_dim) + p.k.runs(p.head_dim)}, packed.options().dtype(at::kFloat));
    p.q.split = q.data_ptr();
    p.k.split = k.data_ptr();
    p.inverse = inverse.data_ptr<float>();
    if (!device::counted("split_norm_and_rotate", {packed.narrow(-1, 0, s.channels()), q_weight, k_weight, cosine, sine}, {q, k, inverse},
                         0))
      cpu::parallel_rows(p.rows, 16, [&](int64_t begin, int64_t end) { cpu::qk_norm_forward(p, begin, end); });
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
    auto p = problem_of(packed, s, q_weight, k_weight, saved[3], saved[4]);
    p.q.split = const_cast<void*>(q.const_data_ptr());
    p.k.split = const_cast<void*>(k.const_data_ptr());
    p.inverse = const_cast<float*>(cpu::floats(inverse));
    p.grad_v = v.const_data_ptr();
    p.grad_packed = grad.data_ptr();
    device::counted("split_norm_and_rotate.backward",
                    {q, k, v, packed.narrow(-1, 0, s.channels()), q_weight, k_weight, saved[3], saved[4], inverse}, {grad}, 0);
    const auto sums = cpu::sum_over_rows(packed, p.rows, p.q.run + p.k.run,
                                         [&](int64_t begin, int64_t end, float* out) { cpu::qk_norm_backward(p, begin, end, out); });
    return {grad, sums.narrow(0, 0, p.q.run), sums.narrow(0, p.q.run, p.k.run)};
  }
};

bool is_fused(const at::Tensor& packed, const QkNorm& norm, const RotaryTable& table) {
  return cpu::takes(packed) && norm.q_weight.scalar_type() == at::kFloat && norm.k_weight.scalar_type() == at::kFloat &&
         table.cosine.scalar_type() == at::kFloat;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> split_norm_and_rotate(const at::Tensor& packed, int64_t heads, int64_t kv_heads,
                                                                     int64_t head_dim, const QkNorm& norm, const RotaryTable& table) {
  if (!norm.q_weight.defined()) return split_and_rotate(packed, heads, kv_heads, head_dim, table);
  const base::WorkScope scope("norm_and_rotate", base::WorkKind::attention);
  if (is_fused(packed, norm, table)) {
    const auto parts = QkNormFunction::apply(packed, norm.q_weight, norm.k_weight, table.cosine.contiguous(), table.sine.contiguous(),
                                             Shape{heads, kv_heads, head_dim, norm.eps});
    return {parts[0], parts[1], parts[2]};
  }
  const auto parts = packed.split_with_sizes({heads * head_dim, kv_heads * head_dim, kv_heads * head_dim}, -1);
  const auto normed = [&](const at::Tensor& x, const at::Tensor& weight) {
    return rms_norm(x.unflatten(-1, {-1, weight.size(0)}), weight, norm.eps, x.scalar_type()).flatten(-2);
  };
  return split_and_rotate(at::cat({normed(parts[0], norm.q_weight), normed(parts[1], norm.k_weight), parts[2]}, -1), heads, kv_heads,
                          head_dim, table);
}

}  // namespace ingot::kernels
