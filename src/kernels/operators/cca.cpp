// CCA's token mixing with four query heads and one kv head. rows: tokens times all heads; width: of a head.
#include "kernels/cca.h"

#include "kernels/cpu_matmul.h"
#include "kernels/operators/helpers.h"
#include "kernels/reference/reference.h"

namespace ingot::kernels {
namespace {

CcaShape shape_of(const OperatorSizes& s) { return {4, 1, s.width}; }
int64_t tokens_of(const OperatorSizes& s) { return s.rows / 5; }

OperatorCall make(const OperatorSizes& s) {
  const auto shape = shape_of(s);
  const int64_t latent = shape.latent();
  const auto own = [&](at::IntArrayRef sizes) { return s.leaf(sizes, s.wide()); };
  const auto angles = at::rand({1, tokens_of(s), s.width / 4}, at::TensorOptions().dtype(s.wide()).device(s.device));
  OperatorCall call;
  call.inputs = {s.leaf({1, tokens_of(s), latent + shape.values()}),
                 own({latent, 1, 2}),
                 own({latent}),
                 own({latent, s.width, 2}),
                 own({latent}),
                 own({shape.kv_heads}),
                 angles.cos(),
                 angles.sin()};
  const auto by = [=](auto&& kernel) {
    return [=](const TensorList& in) -> TensorList {
      const CcaWeights weights{in[1], in[2], in[3], in[4], in[5]};
      const auto [q, k, v] = kernel(in[0], shape, weights, RotaryTable{in[6], in[7]}, at::Tensor(), CcaTail{});
      return {q, k, v};
    };
  };
  call.forward = by(cca_mix);
  call.reference = by(reference::cca_mix);
  return call;
}

// The taps of the first convolution, [tokens, heads, 2 width] fp32, are made in both passes; in between lie matmuls by head.
OperatorCost cost(const OperatorSizes& s) {
  const auto shape = shape_of(s);
  const int64_t tokens = tokens_of(s), latent = shape.latent(), heads = shape.heads + shape.kv_heads;
  const int64_t packed = tokens * (latent + shape.values()) * bytes_of(s.dtype), mixed = tokens * latent * 4, taps = 2 * mixed;
  const int64_t table = tokens * (s.width / 4) * 2 * 4, vectors = 3 * latent * 4;
  const int64_t products = heads * s.width * 2 * s.width * 4;
  const double flops = 2.0 * static_cast<double>(tokens * heads) * static_cast<double>(s.width * 2 * s.width);
  OperatorCost cost;
  cost.forward = {.flops = flops,
                  .read_bytes = packed + vectors + packed + mixed + table,
                  .written_bytes = taps + packed,
                  .scratch_bytes = taps + products + 2 * latent * 4};
  cost.backward = {.flops = 2 * flops,
                   .read_bytes = packed + mixed + packed + packed + vectors + packed + taps,
                   .written_bytes = mixed + packed + taps + packed,
                   // The second sums over rows are gone when the weights' gradients are put in order.
                   .scratch_bytes = 2 * latent * 4 + 2 * products + mixed + 2 * taps +
                                    std::max<int64_t>(0, row_sums_scratch(tokens, 3 * latent) - products - 2 * latent * 4)};
  // Kernels of our own pack what they multiply.
  if (takes_cpu_matmul(at::kFloat)) cost.forward.scratch_bytes = cost.backward.scratch_bytes = OperatorCost::kVaries;
  cost.saved_bytes = packed + mixed + table + (4 * latent + 2 * latent * s.width + shape.kv_heads) * 4;
  return cost;
}

// [tokens, heads, width] or [tokens, heads, 2 width]
Size of_heads(const device::Trace::TensorShape& shape, int64_t divisor) {
  const auto [rows, width] = rows_by_last(shape);
  return {rows, width / divisor};
}

}  // namespace

std::vector<Operator> cca_operators() {
  return {{.name = "cca_mix",
           .kind = WorkKind::attention,
           .traced = {{"cca_taps", false, [](const Shapes&, const Shapes& out) { return of_heads(out.at(0), 2); }},
                      {"cca_heads", false, [](const Shapes& in, const Shapes&) { return of_heads(in.at(1), 1); }},
                      {"cca_heads.backward", true, [](const Shapes& in, const Shapes&) { return of_heads(in.at(1), 1); }},
                      {"cca_taps.backward", true, [](const Shapes& in, const Shapes&) { return of_heads(in.at(1), 2); }}},
           .fused_on = {device::Target::cpu, device::Target::gpu},
           .make = make,
           .cost = cost,
           .measured = [](bool quick) { return grid(token_rows(quick, 5), doubling(32, 128, quick)); },
           .checked = {{5 * 45, 6}, {5 * 37, 16}, {5 * 20, 64}}}};
}

}  // namespace ingot::kernels
