#include "kernels/reference/reference.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/rows_digest.h"
#include "kernels/fp32_islands.h"

namespace ingot::kernels::reference {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, at::ScalarType out) {
  const auto wide = accumulation_type(x.scalar_type());
  if (Fp32Islands::active() && wide == at::kDouble) {
    const auto narrow = x.to(at::kFloat);
    return weight * (narrow * (narrow.pow(2).mean(-1, /*keepdim=*/true) + eps).rsqrt()).to(at::kDouble);
  }
  const auto xw = x.to(wide);
  const auto inverse = (xw.square().mean(-1, /*keepdim=*/true) + eps).rsqrt();
  return (xw * inverse * weight.to(wide)).to(out);
}

at::Tensor join_residual(const at::Tensor& residual, const at::Tensor& branch, const ResidualScale& scale) {
  auto r = residual, h = branch.to(residual.scalar_type());
  if (scale.residual_bias.defined()) r = (r + scale.residual_bias) * scale.residual_scale;
  if (scale.branch_bias.defined()) h = (h + scale.branch_bias) * scale.branch_scale;
  return r + h;
}

at::Tensor activated(const at::Tensor& x, Gate gate) {
  switch (gate) {
    case Gate::silu: return at::silu(x);
    case Gate::gelu_tanh: return at::gelu(x, "tanh");
    case Gate::clamped: break;
  }
  const auto shown = x.clamp_max(kClampedLimit);
  return shown * (shown * static_cast<double>(kClampedSlope)).sigmoid();
}

at::Tensor multiplier(const at::Tensor& x, Gate gate) { return gate == Gate::clamped ? x.clamp(-kClampedLimit, kClampedLimit) + 1 : x; }

at::Tensor glu(const at::Tensor& gate_up, Gate gate) {
  const auto halves = gate_up.chunk(2, -1);
  const auto wide = accumulation_type(gate_up.scalar_type());
  const auto x = halves[0].to(wide);
  return (activated(x, gate) * multiplier(halves[1].to(wide), gate)).to(gate_up.scalar_type());
}

at::Tensor rotate(const at::Tensor& x, const RotaryTable& table) {
  const int64_t half = table.cosine.size(-1);
  const auto cosine = table.cosine.unsqueeze(2), sine = table.sine.unsqueeze(2);  // [batch, seq, 1, half]
  const auto wide = x.to(cosine.scalar_type());
  const auto first = wide.narrow(-1, 0, half), second = wide.narrow(-1, half, half);
  const auto rest = wide.narrow(-1, 2 * half, x.size(-1) - 2 * half);
  return device::cat({first * cosine - second * sine, second * cosine + first * sine, rest}, -1).to(x.scalar_type());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> split_and_rotate(const at::Tensor& packed, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                                                const RotaryTable& table) {
  const auto parts = packed.unflatten(-1, {heads + 2 * kv_heads, head_dim}).split_with_sizes({heads, kv_heads, kv_heads}, 2);
  return {reference::rotate(parts[0], table), reference::rotate(parts[1], table), parts[2].contiguous()};
}

namespace {

// x [batch, seq, c] one token later; `before` [batch, c] is token -1, `at_start` [c] or scalar replaces it at document starts.
at::Tensor delay(const at::Tensor& x, const at::Tensor& before, const at::Tensor& is_start, const at::Tensor& at_start) {
  auto late = device::cat({before.unsqueeze(1), x.narrow(1, 0, x.size(1) - 1)}, 1);
  return is_start.defined() ? at::where(is_start.unsqueeze(-1), at_start, late) : late;
}

at::Tensor normalise(const at::Tensor& x, double length) {
  const double floor = x.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  return x * (length / x.norm(2, -1, /*keepdim=*/true).clamp_min(floor));
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> cca_mix(const at::Tensor& packed, const CcaShape& shape, const CcaWeights& weights,
                                                       const RotaryTable& table, const at::Tensor& is_start, const CcaTail& tail) {
  const auto dtype = packed.scalar_type();
  const auto wide = accumulation_type(dtype);
  const int64_t batch = packed.size(0), seq = packed.size(1), d = shape.head_dim, groups = shape.heads / shape.kv_heads;
  const auto parts = packed.to(wide).split_with_sizes({shape.latent(), shape.current_values(), shape.delayed_values()}, -1);
  const auto& u = parts[0];
  const auto zero = at::zeros({}, u.options());

  // Both convolutions as taps on the token and the one before it.
  const auto older = tail.latent.defined() ? tail.latent.to(wide) : at::zeros({batch, 2, shape.latent()}, u.options());
  const auto depthwise = weights.depthwise_weight.to(wide).squeeze(1);  // [latent, 2]
  const auto tap0 = depthwise.select(1, 0), tap1 = depthwise.select(1, 1), bias0 = weights.depthwise_bias.to(wide);
  const auto first = delay(u, older.select(1, 1), is_start, zero) * tap0 + u * tap1 + bias0;
  const auto first_before = older.select(1, 0) * tap0 + older.select(1, 1) * tap1 + bias0;
  const auto first_late = delay(first, first_before, is_start, bias0);
  const auto grouped = weights.grouped_weight.to(wide).unflatten(0, {-1, d});  // [groups, out, in, 2]
  const auto mixed = at::einsum("bsgi,goi->bsgo", {first_late.unflatten(-1, {-1, d}), grouped.select(3, 0)}) +
                     at::einsum("bsgi,goi->bsgo", {first.unflatten(-1, {-1, d}), grouped.select(3, 1)}) +
                     weights.grouped_bias.to(wide).view({-1, d});

  const auto latent = u.unflatten(-1, {-1, d}).split_with_sizes({shape.heads, shape.kv_heads}, 2);
  const auto mean_q = (latent[0] + latent[1].repeat_interleave(groups, 2)) / 2;
  const auto mean_k = mean_q.unflatten(2, {shape.kv_heads, groups}).mean(3);
  const double length = std::sqrt(static_cast<double>(d));
  const auto q = normalise(mixed.narrow(2, 0, shape.heads) + mean_q, length);
  const auto k = normalise(mixed.narrow(2, shape.heads, shape.kv_heads) + mean_k, length) * weights.temperature.to(wide).unsqueeze(-1);

  const auto value_before =
      tail.delayed_value.defined() ? tail.delayed_value.to(wide) : at::zeros({batch, shape.delayed_values()}, u.options());
  const auto v = device::cat({parts[1], delay(parts[2], value_before, is_start, zero)}, -1).view({batch, seq, shape.kv_heads, d});
  return {reference::rotate(q, table).to(dtype), reference::rotate(k, table).to(dtype), v.to(dtype)};
}

namespace {

struct Tiles {
  at::Tensor padded, tiles;  // [m, n] filled up with zeros; [rows of tiles, tile_rows, columns of tiles, tile_columns]
  Tiles(const at::Tensor& x, int64_t tile_rows, int64_t tile_columns) {
    const auto missing = [](int64_t size, int64_t tile) { return (tile - size % tile) % tile; };
    padded = at::constant_pad_nd(x, {0, missing(x.size(1), tile_columns), 0, missing(x.size(0), tile_rows)});
    tiles = padded.view({padded.size(0) / tile_rows, tile_rows, padded.size(1) / tile_columns, tile_columns});
  }
  at::Tensor largest() const { return tiles.abs().amax({1, 3}, /*keepdim=*/true); }
  at::Tensor untiled(const at::Tensor& rounded, const at::Tensor& like) const {
    return rounded.view(padded.sizes()).narrow(0, 0, like.size(0)).narrow(1, 0, like.size(1)).to(like.scalar_type());
  }
};

// The smallest power of two, from 2^-100 to 2^100, that is not below x >= 0 in fp32 or fp64.
at::Tensor power_above(const at::Tensor& x) {
  const bool is_double = x.scalar_type() == at::kDouble;
  const int64_t fraction_bits = is_double ? 52 : 23, bias = is_double ? 1023 : 127;
  const auto bits = x.view(is_double ? at::kLong : at::kInt);
  const auto is_between = bits.bitwise_and((int64_t{1} << fraction_bits) - 1).ne(0);
  return at::exp2((bits.bitwise_right_shift(fraction_bits) - bias + is_between).clamp(-100, 100).to(x.scalar_type()));
}

// cpu/rows_fp8.cpp has the same of 32 bits.
at::Tensor chance(const at::Tensor& x) {
  constexpr int64_t kMask = 0xffffffff;
  const auto place = at::arange(x.numel(), x.options().dtype(at::kLong)).view(x.sizes());
  auto h = (x.contiguous().view(at::kInt).to(at::kLong) * 0x9e3779b1 + place * 0x85ebca77).bitwise_and(kMask);
  h = h.bitwise_xor(h.bitwise_right_shift(16)).mul(0x7feb352d).bitwise_and(kMask);
  h = h.bitwise_xor(h.bitwise_right_shift(15)).mul(0x846ca68b).bitwise_and(kMask);
  return h.bitwise_xor(h.bitwise_right_shift(16)).bitwise_right_shift(8).to(at::kFloat) * 0x1p-24;
}

}  // namespace

at::Tensor round_to_fp8(const at::Tensor& x, int64_t tile_rows, int64_t tile_columns, at::ScalarType format) {
  const Tiles t(x.to(accumulation_type(x.scalar_type())), tile_rows, tile_columns);
  const auto scale = power_above(t.largest() / (format == at::kFloat8_e5m2 ? 57344 : 448));
  return t.untiled((t.tiles / scale).to(format).to(t.tiles.scalar_type()) * scale, x);
}

at::Tensor round_to_nvfp4(const at::Tensor& x, int64_t tile_rows, int64_t tile_columns, bool is_stochastic) {
  const auto wide = x.to(at::kFloat);
  const Tiles t(wide, tile_rows, tile_columns);
  const auto largest = t.largest(), outer = power_above(largest.amax() / (6 * 448));
  const auto scale = (largest / 6 / outer).to(at::kFloat8_e4m3fn).to(at::kFloat) * outer;
  const auto quotient = at::where(scale == 0, 0.0, t.tiles.abs() / scale).clamp_max(6);
  const auto step = at::where(quotient < 2, 0.5, at::where(quotient < 4, 1.0, 2.0));
  const auto steps =
      is_stochastic ? (quotient / step + Tiles(chance(wide), tile_rows, tile_columns).tiles).floor() : (quotient / step).round();
  return t.untiled((steps * step * scale).copysign(t.tiles) * (t.tiles - t.tiles + 1), x);
}

SortedSlots sort_slots(const at::Tensor& choice, int64_t experts) {
  SortedSlots sorted;
  sorted.order = choice.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const auto rows = at::arange(choice.numel(), choice.options());
  sorted.inverse = at::empty_like(sorted.order).scatter_(0, sorted.order, rows);
  const auto ends = class_counts(choice, experts + 1).cumsum(0).narrow(0, 0, experts);
  sorted.is_routed = rows.lt(ends[experts - 1]).to(at::kFloat);
  sorted.ends = ends.to(at::kInt);
  sorted.ends[experts - 1].fill_(choice.numel());
  return sorted;
}

at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& order, int64_t top_k, at::ScalarType out) {
  return x.index_select(0, top_k == 1 ? order : order.div(top_k, "floor")).to(out);
}

at::Tensor sum_slots(const at::Tensor& x, const at::Tensor& inverse, int64_t top_k, at::ScalarType out) {
  const auto by_slot = x.index_select(0, inverse).view({-1, top_k, x.size(1)});
  return by_slot.sum(1, /*keepdim=*/false, accumulation_type(x.scalar_type())).to(out);
}

at::Tensor digest(const at::Tensor& x) {
  constexpr int64_t kWords = 1 << 22;  // at a time, for the sake of memory
  const at::NoGradGuard no_grad;
  const auto bytes = x.detach().reshape(-1).view(at::kByte);
  auto sums = at::zeros({2}, bytes.options().dtype(at::kLong));
  const auto add = [&](const at::Tensor& words, int64_t position) {
    const auto key = (at::arange(words.numel(), words.options()) + position) * static_cast<int64_t>(cpu::kDigestStep) +
                     static_cast<int64_t>(cpu::kDigestSeed);
    const auto high_half = [](const at::Tensor& w) { return w.bitwise_right_shift(32).bitwise_and(0xffffffff); };
    auto mixed = words.bitwise_xor(key) * static_cast<int64_t>(cpu::kDigestFirst);
    mixed = mixed.bitwise_xor(high_half(mixed)) * static_cast<int64_t>(cpu::kDigestSecond);
    const auto high = high_half(mixed);
    sums += at::stack({mixed.bitwise_xor(high).sum(), (mixed.bitwise_and(0xffffffff) * high).sum()});
  };
  add(at::full({1}, bytes.numel(), sums.options()), 0);
  for (int64_t from = 0; from < bytes.numel(); from += 8 * kWords) {
    const int64_t count = std::min(8 * kWords, bytes.numel() - from);
    auto words = at::zeros({(count + 7) / 8}, sums.options());
    words.view(at::kByte).narrow(0, 0, count).copy_(bytes.narrow(0, from, count));
    add(words, from / 8 + 1);
  }
  return sums;
}

TopkSoftmax topk_softmax(const at::Tensor& logits, const at::Tensor& bias, int64_t top_k, bool renormalises, const ChangeChoice& change) {
  const auto probabilities = at::softmax(logits, -1);
  at::Tensor choice;
  {
    const at::NoGradGuard no_grad;
    const auto scores = probabilities + bias;
    choice = top_k == 1 ? scores.argmax(-1) : std::get<1>(scores.topk(top_k, -1)).flatten();
    if (change) choice = change(choice);
  }
  auto weight = probabilities.gather(1, choice.view({-1, top_k}));
  if (renormalises) weight = weight / weight.sum(-1, /*keepdim=*/true);
  return {weight.flatten(), choice};
}

}  // namespace ingot::kernels::reference
