#include "kernels/cca.h"

#include "base/work_scope.h"
#include "kernels/cpu/rows_cca.h"
#include "kernels/differentiable.h"
#include "kernels/matmul.h"
#include "kernels/reference/reference.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

constexpr int64_t kMostHeadDim = 512, kMostHeadDimOfGpu = 256;  // of the fused kernels' buffers

using Problem = cpu::CcaProblem;

const bool* marks(const at::Tensor& is_start) { return is_start.defined() ? is_start.const_data_ptr<bool>() : nullptr; }

// Everything the fused kernels read, in the layout they want.
struct Operands {
  at::Tensor packed, tap0, tap1, bias0, bias1, temperature, cosine, sine, is_start;
  at::Tensor products;  // grouped weight as [heads + kv_heads, head_dim (out), 2 * head_dim (tap, in)]
  Problem problem{};

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
  }

  int64_t all_heads() const { return problem.heads + problem.kv_heads; }

  // The first convolution, [rows, heads, 2 * head_dim].
  at::Tensor taps() const {
    auto out = at::empty({problem.rows, all_heads(), 2 * problem.head_dim}, packed.options().dtype(at::kFloat));
    const auto bind = [](Problem& p, const RowTensors& t) {
      p.packed = address(t.in[0]);
      p.tap0 = numbers(t.in[1]);
      p.tap1 = numbers(t.in[2]);
      p.bias0 = numbers(t.in[3]);
      p.taps = numbers(t.out[0]);
      p.is_start = marks(t.more[0]);
    };
    run_rows(RowCall<Problem>{"cca_taps", "ingot_cca_taps", {{packed, tap0, tap1, bias0}, {out}, {is_start}}, problem, bind},
             cpu::cca_taps);
    return out;
  }

  // What both passes over the heads read.
  TensorList of_heads() const { return {bias1, temperature, cosine, sine, is_start}; }
  static void bind_heads(Problem& p, const at::Tensor& packed, const at::Tensor& mixed, const TensorList& of_heads) {
    p.packed = address(packed);
    p.mixed = numbers(mixed);
    p.bias1 = numbers(of_heads[0]);
    p.temperature = numbers(of_heads[1]);
    p.cosine = numbers(of_heads[2]);
    p.sine = numbers(of_heads[3]);
    p.is_start = marks(of_heads[4]);
  }
};

// out[:, head] = a[head] b[head] for each head; out [rows, heads, n]. A GPU multiplies all heads in one call, a CPU one after the other.
void multiply_heads(at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  auto by_head = out.transpose(0, 1);
  if (device::is_gpu(out)) {
    at::bmm_out(by_head, a, b);
    return;
  }
  for (int64_t head = 0; head < a.size(0); ++head) matmul_into(by_head[head], a[head], b[head], /*overwrite=*/true);
}

// Saves the packed projection and the second convolution's output; the first one is made again in backward.
struct CcaMixFunction : Function<CcaMixFunction, WorkKind::attention> {
  static TensorList forward(Context& context, const at::Tensor& packed, const at::Tensor& depthwise, const at::Tensor& depthwise_bias,
                            const at::Tensor& grouped, const at::Tensor& grouped_bias, const at::Tensor& temperature,
                            const at::Tensor& cosine, const at::Tensor& sine, const at::Tensor& starts, int64_t heads, int64_t kv_heads,
                            int64_t head_dim, int64_t current) {
    const Operands o(packed, {heads, kv_heads, head_dim, current}, depthwise, depthwise_bias, grouped, grouped_bias, temperature, cosine,
                     sine, starts);
    const auto taps = o.taps();
    const auto mixed = at::empty({o.problem.rows, o.all_heads(), head_dim}, taps.options());
    multiply_heads(mixed, taps.transpose(0, 1), o.products.transpose(1, 2));
    const int64_t batch = packed.size(0), seq = packed.size(1);
    auto q = at::empty({batch, seq, heads, head_dim}, packed.options()), k = at::empty({batch, seq, kv_heads, head_dim}, packed.options());
    auto v = at::empty_like(k);
    const auto bind = [](Problem& p, const RowTensors& t) {
      Operands::bind_heads(p, t.in[0], t.in[1], {t.more[0], t.more[1], t.in[2], t.in[3], t.more[2]});
      p.q = address(t.out[0]);
      p.k = address(t.out[1]);
      p.v = address(t.out[2]);
    };
    const RowTensors tensors{{o.packed, mixed, cosine, sine}, {q, k, v}, {o.bias1, o.temperature, o.is_start}};
    run_rows(RowCall<Problem>{"cca_heads", "ingot_cca_heads", tensors, o.problem, bind}, cpu::cca_heads);
    context.keep(current);
    context.save({packed, depthwise, depthwise_bias, grouped, grouped_bias, temperature, cosine, sine, starts, mixed});
    return {q, k, v};
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto s = context.saved();
    const auto q = grads[0].contiguous(), k = grads[1].contiguous(), v = grads[2].contiguous();
    const CcaShape shape{q.size(2), k.size(2), q.size(3), context.kept<int64_t>()};
    const Operands o(s[0], shape, s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8]);
    const auto& mixed = s[9];
    const int64_t latent = shape.latent();
    const auto grad_mixed = at::empty_like(mixed), grad_packed = at::empty_like(o.packed);

    const auto bind_heads = [](Problem& p, const RowTensors& t) {
      Operands::bind_heads(p, t.in[0], t.in[1], t.more);
      p.q = address(t.in[2]);
      p.k = address(t.in[3]);
      p.v = address(t.in[4]);
      p.grad_mixed = numbers(t.out[0]);
      p.grad_packed = address(t.out[1]);
    };
    const RowCall<Problem> of_heads{"cca_heads.backward",
                                    "ingot_cca_heads_backward",
                                    {{o.packed, mixed, q, k, v}, {grad_mixed, grad_packed}, o.of_heads()},
                                    o.problem,
                                    bind_heads};
    const auto head_sums = run_and_sum_rows(of_heads, cpu::cca_heads_backward, 1, 1, latent + shape.kv_heads)[0];

    const auto taps = o.taps();
    const auto grad_taps = at::empty_like(taps), grad_products = at::empty_like(o.products);
    multiply_heads(grad_taps, grad_mixed.transpose(0, 1), o.products);
    multiply_heads(grad_products.transpose(0, 1), grad_mixed.permute({1, 2, 0}), taps.transpose(0, 1));

    const auto bind_taps = [](Problem& p, const RowTensors& t) {
      p.packed = address(t.in[0]);
      p.grad_taps = numbers(t.in[1]);
      p.grad_packed = address(t.out[0]);
      p.tap0 = numbers(t.more[0]);
      p.tap1 = numbers(t.more[1]);
      p.is_start = marks(t.more[2]);
      p.grad_mixed = numbers(t.more[3]);
      p.v = address(t.more[4]);
    };
    const RowCall<Problem> of_taps{"cca_taps.backward",
                                   "ingot_cca_taps_backward",
                                   {{o.packed, grad_taps}, {grad_packed}, {o.tap0, o.tap1, o.is_start, grad_mixed, v}},
                                   o.problem,
                                   bind_taps};
    const auto tap_sums = run_and_sum_rows(of_taps, cpu::cca_taps_backward, 3, 3, latent);

    const auto grad_depthwise = at::stack({tap_sums[0], tap_sums[1]}, 1).unsqueeze(1);  // [latent, 1, 2]
    const auto grad_grouped =
        grad_products.unflatten(2, {2, shape.head_dim}).transpose(2, 3).flatten(0, 1).contiguous();  // [latent, head_dim, 2]
    return {grad_packed,
            grad_depthwise,
            tap_sums[2],
            grad_grouped,
            head_sums.narrow(0, 0, latent),
            head_sums.narrow(0, latent, shape.kv_heads)};
  }
};

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> cca_mix(const at::Tensor& packed, const CcaShape& shape, const CcaWeights& w,
                                                       const RotaryTable& table, const at::Tensor& is_start, const CcaTail& tail) {
  const base::WorkScope scope("cca_mix", base::WorkKind::attention);
  const bool fused = takes_rows(packed, "ingot_cca_taps") && !tail.latent.defined() && w.grouped_weight.scalar_type() == at::kFloat &&
                     shape.head_dim <= (device::is_cpu(packed) ? kMostHeadDim : kMostHeadDimOfGpu) &&
                     table.cosine.scalar_type() == at::kFloat;
  if (!fused) return reference::cca_mix(packed, shape, w, table, is_start, tail);
  const auto starts = is_start.defined() ? is_start.contiguous() : is_start;
  const auto parts = CcaMixFunction::apply(packed, w.depthwise_weight, w.depthwise_bias, w.grouped_weight, w.grouped_bias, w.temperature,
                                           table.cosine.contiguous(), table.sine.contiguous(), starts, shape.heads, shape.kv_heads,
                                           shape.head_dim, shape.current_values());
  return {parts[0], parts[1], parts[2]};
}

}  // namespace ingot::kernels
