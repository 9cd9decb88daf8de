#include "kernels/rope.h"

#include "base/work_scope.h"
#include "kernels/cpu/rows_parallel.h"
#include "kernels/cpu/rows_rope.h"
#include "kernels/differentiable.h"
#include "kernels/reference/reference.h"

namespace ingot::kernels {
namespace {

cpu::SplitRotateProblem problem_of(const at::Tensor& packed, int64_t heads, int64_t kv_heads, int64_t head_dim, const at::Tensor& cosine,
                                   const at::Tensor& sine) {
  cpu::SplitRotateProblem p{};
  p.rows = packed.size(0) * packed.size(1);
  p.heads = heads;
  p.kv_heads = kv_heads;
  p.head_dim = head_dim;
  p.half = cosine.size(-1);
  p.table_rows = cosine.size(0) * cosine.size(1);
  p.is_bf16 = packed.scalar_type() == at::kBFloat16;
  p.cosine = cpu::floats(cosine);
  p.sine = cpu::floats(sine);
  return p;
}

// Saves only the table; the gradient turns the other way.
struct SplitRotateFunction : Function<SplitRotateFunction, WorkKind::attention> {
  static TensorList forward(Context& context, const at::Tensor& packed_in, int64_t heads, int64_t kv_heads, int64_t head_dim,
                            const at::Tensor& cosine, const at::Tensor& sine) {
    const auto packed = packed_in.contiguous();
    auto p = problem_of(packed, heads, kv_heads, head_dim, cosine, sine);
    const int64_t batch = packed.size(0), seq = packed.size(1);
    auto q = at::empty({batch, seq, heads, head_dim}, packed.options()), k = at::empty({batch, seq, kv_heads, head_dim}, packed.options());
    auto v = at::empty_like(k);
    p.packed = const_cast<void*>(packed.const_data_ptr());
    p.q = q.data_ptr();
    p.k = k.data_ptr();
    p.v = v.data_ptr();
    if (!device::counted("split_and_rotate", {packed, cosine, sine}, {q, k, v}, 0))
      cpu::parallel_rows(p.rows, 16, [&](int64_t begin, int64_t end) { cpu::split_rotate_forward(p, begin, end); });
    context.save({cosine, sine});
    return {q, k, v};
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto saved = context.saved();
    const auto q = grads[0].contiguous(), k = grads[1].contiguous(), v = grads[2].contiguous();
    const int64_t heads = q.size(2), kv_heads = k.size(2), head_dim = q.size(3);
    auto packed = at::empty({q.size(0), q.size(1), (heads + 2 * kv_heads) * head_dim}, q.options());
    auto p = problem_of(packed, heads, kv_heads, head_dim, saved[0], saved[1]);
    p.packed = packed.data_ptr();
    p.q = const_cast<void*>(q.const_data_ptr());
    p.k = const_cast<void*>(k.const_data_ptr());
    p.v = const_cast<void*>(v.const_data_ptr());
    if (!device::counted("split_and_rotate.backward", {q, k, v, saved[0], saved[1]}, {packed}, 0))
      cpu::parallel_rows(p.rows, 16, [&](int64_t begin, int64_t end) { cpu::split_rotate_backward(p, begin, end); });
    return {packed};
  }
};

}  // namespace

at::Tensor rotate(const at::Tensor& x, const RotaryTable& table) { return reference::rotate(x, table); }

std::tuple<at::Tensor, at::Tensor, at::Tensor> split_and_rotate(const at::Tensor& packed, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                                                const RotaryTable& table) {
  const base::WorkScope scope("rotate", base::WorkKind::attention);
  if (!cpu::takes(packed) || table.cosine.scalar_type() != at::kFloat)
    return reference::split_and_rotate(packed, heads, kv_heads, head_dim, table);
  const auto parts = SplitRotateFunction::apply(packed, heads, kv_heads, head_dim, table.cosine.contiguous(), table.sine.contiguous());
  return {parts[0], parts[1], parts[2]};
}

}  // namespace ingot::kernels
