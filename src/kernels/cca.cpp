#include "kernels/cca.h"

#include "base/work_scope.h"
#include "kernels/cpu/rows_cca.h"
#include "kernels/cpu/rows_parallel.h"
#include "kernels/differentiable.h"
#include "kernels/reference/reference.h"

namespace ingot::kernels {
namespace {

constexpr int64_t kMaxHeadDim = 512;  // of the fused kernel's buffers

// Everything the fused kernels read, in the layout they want.
struct Operands {
  at::Tensor packed, tap0, tap1, bias0, bias1, temperature, cosine, sine, is_start;
  at::Tensor products;  // grouped weight as [heads + kv_heads, head_dim (out), 2 * head_dim (tap, in)]
  cpu::CcaProblem problem{};

  Operands(const at::Tensor& packed_in, const CcaShape& shape, const at::Tensor& depthwise, const at::Tensor& depthwise_bias,
           const at::Tensor& grouped, const at::Tensor& grouped_bias, const at::Tensor& temperature_in, const at::Tensor& cosine_in,
           const at::Tensor& sine_in, const at::Tensor& starts)
      : packed(packed_in.contiguous()),
        tap0(depthwise.select(2, 0).flatten().contiguous()),
        tap1(depthwise.select(2, 1).flatten().contiguous()),
        bias0(depthwise_bias),
        bias1(grouped_bias),
        temperature(temperature_in),
        cosine(cosine_in),
        sine(sine_in),
        is_start(starts),
        products(grouped.unflatten(0, {-1, shape.head_dim}).transpose(2, 3).flatten(2).contiguous()) {
    auto& p = problem;
    p.rows = packed.size(0) * packed.size(1);
    p.seq = packed.size(1);
    p.heads = shape.heads;
    p.kv_heads = shape.kv_heads;
    p.head_dim = shape.head_dim;
    p.current = shape.current_values();
    p.half = cosine.size(-1);
    p.table_rows = cosine.size(0) * cosine.size(1);
    p.is_bf16 = packed.scalar_type() == at::kBFloat16;
    p.is_start = is_start.defined() ? is_start.const_data_ptr<bool>() : nullptr;
    p.packed = packed.const_data_ptr();
    p.tap0 = cpu::floats(tap0);
    p.tap1 = cpu::floats(tap1);
    p.bias0 = cpu::floats(bias0);
    p.bias1 = cpu::floats(bias1);
    p.temperature = cpu::floats(temperature);
    p.cosine = cpu::floats(cosine);
    p.sine = cpu::floats(sine);
  }

  int64_t all_heads() const { return problem.heads + problem.kv_heads; }

  // The first convolution, [rows, heads, 2 * head_dim].
  at::Tensor taps() {
    auto out = at::empty({problem.rows, all_heads(), 2 * problem.head_dim}, packed.options().dtype(at::kFloat));
    problem.taps = out.data_ptr<float>();
    if (!device::counted("cca_taps", {packed, tap0, tap1, bias0}, {out}, 0))
      cpu::parallel_rows(problem.rows, 16, [&](int64_t begin, int64_t end) { cpu::cca_taps(problem, begin, end); });
    return out;
  }
};

// Saves the packed projection and the second convolution's output; the first one is made again in backward.
struct CcaMixFunction : Function<CcaMixFunction, WorkKind::attention> {
  static TensorList forward(Context& context, const at::Tensor& packed, const at::Tensor& depthwise, const at::Tensor& depthwise_bias,
                            const at::Tensor& grouped, const at::Tensor& grouped_bias, const at::Tensor& temperature,
                            const at::Tensor& cosine, const at::Tensor& sine, const at::Tensor& starts, int64_t heads, int64_t kv_heads,
                            int64_t head_dim, int64_t current) {
    Operands o(packed, {heads, kv_heads, head_dim, current}, depthwise, depthwise_bias, grouped, grouped_bias, temperature, cosine, sine,
               starts);
    auto& p = o.problem;
    const auto taps = o.taps();
    auto mixed = at::empty({p.rows, o.all_heads(), head_dim}, taps.options());
    for (int64_t head = 0; head < o.all_heads(); ++head) {
      auto out = mixed.select(1, head);
      at::mm_out(out, taps.select(1, head), o.products[head].t());
    }
    const int64_t batch = packed.size(0), seq = packed.size(1);
    auto q = at::empty({batch, seq, heads, head_dim}, packed.options()), k = at::empty({batch, seq, kv_heads, head_dim}, packed.options());
    auto v = at::empty_like(k);
    p.mixed = mixed.data_ptr<float>();
    p.q = q.data_ptr();
    p.k = k.data_ptr();
    p.v = v.data_ptr();
    if (!device::counted("cca_heads", {o.packed, mixed, cosine, sine}, {q, k, v}, 0))
      cpu::parallel_rows(p.rows, 16, [&](int64_t begin, int64_t end) { cpu::cca_heads(p, begin, end); });
    context.keep(current);
    context.save({packed, depthwise, depthwise_bias, grouped, grouped_bias, temperature, cosine, sine, starts, mixed});
    return {q, k, v};
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto s = context.saved();
    const auto q = grads[0].contiguous(), k = grads[1].contiguous(), v = grads[2].contiguous();
    const CcaShape shape{q.size(2), k.size(2), q.size(3), context.kept<int64_t>()};
    Operands o(s[0], shape, s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8]);
    auto& p = o.problem;
    const int64_t latent = shape.latent();
    auto grad_mixed = at::empty_like(s[9]), grad_packed = at::empty_like(o.packed);
    p.mixed = const_cast<float*>(cpu::floats(s[9]));
    p.grad_mixed = grad_mixed.data_ptr<float>();
    p.grad_packed = grad_packed.data_ptr();
    p.q = const_cast<void*>(q.const_data_ptr());
    p.k = const_cast<void*>(k.const_data_ptr());
    p.v = const_cast<void*>(v.const_data_ptr());
    device::counted("cca_heads.backward", {o.packed, s[9], q, k, v}, {grad_mixed, grad_packed}, 0);
    const auto head_sums = cpu::sum_over_rows(q, p.rows, 4 * latent + shape.kv_heads, [&](int64_t begin, int64_t end, float* sums) {
      cpu::cca_heads_backward(p, begin, end, sums);
    });
    const auto taps = o.taps();
    auto grad_taps = at::empty_like(taps), grad_products = at::empty_like(o.products);
    for (int64_t head = 0; head < o.all_heads(); ++head) {
      auto to_taps = grad_taps.select(1, head), to_products = grad_products[head];
      at::mm_out(to_taps, grad_mixed.select(1, head), o.products[head]);
      at::mm_out(to_products, grad_mixed.select(1, head).t(), taps.select(1, head));
    }
    p.grad_taps = cpu::floats(grad_taps);
    device::counted("cca_taps.backward", {o.packed, grad_taps}, {grad_packed}, 0);
    const auto tap_sums = cpu::sum_over_rows(q, p.rows, 3 * latent, [&](int64_t begin, int64_t end, float* sums) {
                            cpu::cca_taps_backward(p, begin, end, sums);
                          }).view({3, latent});
    const auto grad_depthwise = at::stack({tap_sums[0], tap_sums[1]}, 1).unsqueeze(1);  // [latent, 1, 2]
    const auto grad_grouped =
        grad_products.unflatten(2, {2, shape.head_dim}).transpose(2, 3).flatten(0, 1).contiguous();  // [latent, head_dim, 2]
    return {grad_packed,
            grad_depthwise,
            tap_sums[2],
            grad_grouped,
            head_sums.narrow(0, 3 * latent, latent),
            head_sums.narrow(0, 4 * latent, shape.kv_heads)};
  }
};

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> cca_mix(const at::Tensor& packed, const CcaShape& shape, const CcaWeights& w,
                                                       const RotaryTable& table, const at::Tensor& is_start, const CcaTail& tail) {
  const base::WorkScope scope("cca_mix", base::WorkKind::attention);
  const bool fused = cpu::takes(packed) && !tail.latent.defined() && w.grouped_weight.scalar_type() == at::kFloat &&
                     shape.head_dim <= kMaxHeadDim && table.cosine.scalar_type() == at::kFloat;
  if (!fused) return reference::cca_mix(packed, shape, w, table, is_start, tail);
  const auto starts = is_start.defined() ? is_start.contiguous() : is_start;
  const auto parts = CcaMixFunction::apply(packed, w.depthwise_weight, w.depthwise_bias, w.grouped_weight, w.grouped_bias, w.temperature,
                                           table.cosine.contiguous(), table.sine.contiguous(), starts, shape.heads, shape.kv_heads,
                                           shape.head_dim, shape.current_values());
  return {parts[0], parts[1], parts[2]};
}

}  // namespace ingot::kernels
