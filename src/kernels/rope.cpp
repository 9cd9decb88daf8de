#include "kernels/rope.h"

#include "base/work_scope.h"
#include "kernels/cpu/rows_rope.h"
#include "kernels/differentiable.h"
#include "kernels/reference/reference.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

constexpr const char *kForward = "ingot_split_rotate_forward", *kBackward = "ingot_split_rotate_backward";

cpu::SplitRotateProblem problem_of(const at::Tensor& packed, int64_t heads, int64_t kv_heads, int64_t head_dim, const at::Tensor& cosine) {
  cpu::SplitRotateProblem p{};
  p.rows = packed.size(0) * packed.size(1);
  p.heads = heads;
  p.kv_heads = kv_heads;
  p.head_dim = head_dim;
  p.half = cosine.size(-1);
  p.table_rows = cosine.size(0) * cosine.size(1);
  p.is_bf16 = packed.scalar_type() == at::kBFloat16;
  return p;
}

void bind_heads(cpu::SplitRotateProblem& p, const at::Tensor& packed, const TensorList& q_k_v) {
  p.packed = address(packed);
  p.q = address(q_k_v[0]);
  p.k = address(q_k_v[1]);
  p.v = address(q_k_v[2]);
}

// Saves only the table; the gradient turns the other way.
struct SplitRotateFunction : Function<SplitRotateFunction, WorkKind::attention> {
  static TensorList forward(Context& context, const at::Tensor& packed_in, int64_t heads, int64_t kv_heads, int64_t head_dim,
                            const at::Tensor& cosine, const at::Tensor& sine) {
    const auto packed = packed_in.contiguous();
    const int64_t batch = packed.size(0), seq = packed.size(1);
    auto q = at::empty({batch, seq, heads, head_dim}, packed.options()), k = at::empty({batch, seq, kv_heads, head_dim}, packed.options());
    auto v = at::empty_like(k);
    const auto bind = [](cpu::SplitRotateProblem& p, const RowTensors& t) {
      bind_heads(p, t.in[0], t.out);
      p.cosine = numbers(t.in[1]);
      p.sine = numbers(t.in[2]);
    };
    const RowCall<cpu::SplitRotateProblem> call{
        "split_and_rotate", kForward, {{packed, cosine, sine}, {q, k, v}, {}}, problem_of(packed, heads, kv_heads, head_dim, cosine), bind};
    run_rows(call, cpu::split_rotate_forward);
    context.save({cosine, sine});
    return {q, k, v};
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto saved = context.saved();
    const auto q = grads[0].contiguous(), k = grads[1].contiguous(), v = grads[2].contiguous();
    const int64_t heads = q.size(2), kv_heads = k.size(2), head_dim = q.size(3);
    auto packed = at::empty({q.size(0), q.size(1), (heads + 2 * kv_heads) * head_dim}, q.options());
    const auto bind = [](cpu::SplitRotateProblem& p, const RowTensors& t) {
      bind_heads(p, t.out[0], t.in);
      p.cosine = numbers(t.in[3]);
      p.sine = numbers(t.in[4]);
    };
    const RowCall<cpu::SplitRotateProblem> call{"split_and_rotate.backward",
                                                kBackward,
                                                {{q, k, v, saved[0], saved[1]}, {packed}, {}},
                                                problem_of(packed, heads, kv_heads, head_dim, saved[0]),
                                                bind};
    run_rows(call, cpu::split_rotate_backward);
    return {packed};
  }
};

}  // namespace

at::Tensor rotate(const at::Tensor& x, const RotaryTable& table) { return reference::rotate(x, table); }

std::tuple<at::Tensor, at::Tensor, at::Tensor> split_and_rotate(const at::Tensor& packed, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                                                const RotaryTable& table) {
  const base::WorkScope scope("rotate", base::WorkKind::attention);
  if (!takes_rows(packed, kForward) || table.cosine.scalar_type() != at::kFloat)
    return reference::split_and_rotate(packed, heads, kv_heads, head_dim, table);
  const auto parts = SplitRotateFunction::apply(packed, heads, kv_heads, head_dim, table.cosine.contiguous(), table.sine.contiguous());
  return {parts[0], parts[1], parts[2]};
}

}  // namespace ingot::kernels
