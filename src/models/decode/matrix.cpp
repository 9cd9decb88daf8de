#include "models/decode/matrix.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace ingot::models::decode {
namespace {

using kernels::kWeightGroup, kernels::kWeightPanel, kernels::WeightFormat;
using kernels::cpu::FewProductsProblem;

// What the integers of a group of weights stand for, and the scale: the least sum of squared errors of a few scales, each then fitted to
// the integers that it gives.
template <int kMost>
float round_group(const float* weights, int8_t* rounded) {
  float largest = 0;
  for (int64_t i = 0; i < kWeightGroup; ++i)
    if (std::abs(weights[i]) > std::abs(largest)) largest = weights[i];
  if (largest == 0) {
    std::fill(rounded, rounded + kWeightGroup, int8_t{0});
    return 0;
  }
  const auto attempt = [&](float scale, int8_t* to) {
    float products = 0, squares = 0;
    for (int64_t i = 0; i < kWeightGroup; ++i) {
      const float q = std::clamp(std::nearbyint(weights[i] / scale), -static_cast<float>(kMost + 1), static_cast<float>(kMost));
      to[i] = static_cast<int8_t>(q);
      products += q * weights[i], squares += q * q;
    }
    const float fitted = squares > 0 ? products / squares : scale;
    float error = 0;
    for (int64_t i = 0; i < kWeightGroup; ++i) {
      const float e = weights[i] - fitted * static_cast<float>(to[i]);
      error += e * e;
    }
    return std::pair(fitted, error);
  };
  if (kMost > 7) return attempt(std::abs(largest) / kMost, rounded).first;
  // The largest at -8, or below: what lies beyond is cut off.
  float scale = 0, least = INFINITY;
  int8_t some[kWeightGroup];
  for (const float at : {-8.0f, -7.4f, -6.8f, 7.0f, -9.0f}) {
    const auto [fitted, error] = attempt(largest / at, some);
    if (error >= least) continue;
    least = error, scale = fitted;
    std::copy(some, some + kWeightGroup, rounded);
  }
  return scale;
}

// A panel's weights, [outputs, inputs], into `packed` and `scales`; `weights` becomes what they stand for.
void pack(WeightFormat format, float* weights, int64_t outputs, int64_t inputs, uint8_t* packed, float* scales) {
  const int64_t groups = kernels::padded_inputs(format, inputs) / kWeightGroup;
  std::array<std::array<int8_t, kWeightGroup>, kWeightPanel> rounded{};
  for (int64_t g = 0; g < groups; ++g, scales += kWeightPanel) {
    const int64_t there = std::min(kWeightGroup, inputs - g * kWeightGroup);
    for (int64_t o = 0; o < outputs; ++o) {
      float* const own = weights + o * inputs + g * kWeightGroup;
      std::array<float, kWeightGroup> group{};
      std::copy_n(own, there, group.begin());
      auto& to = rounded[static_cast<size_t>(o)];
      scales[o] = format == WeightFormat::int8 ? round_group<127>(group.data(), to.data()) : round_group<7>(group.data(), to.data());
      for (int64_t i = 0; i < there; ++i) own[i] = scales[o] * static_cast<float>(to[static_cast<size_t>(i)]);
    }
    if (format == WeightFormat::int8) {
      for (size_t i = 0; i < kWeightGroup; i += 2)
        for (const auto& output : rounded) *packed++ = static_cast<uint8_t>(output[i]), *packed++ = static_cast<uint8_t>(output[i + 1]);
      continue;
    }
    constexpr size_t kHalf = kWeightGroup / 2;
    for (size_t first = 0; first < kHalf; first += 4)
      for (const auto& output : rounded)
        for (size_t i = first; i < first + 4; ++i) {
          const auto low = static_cast<unsigned>(output[i] + 8), high = static_cast<unsigned>(output[kHalf + i] + 8);
          *packed++ = static_cast<uint8_t>(low | high << 4);
        }
  }
}

int16_t* room_for(std::vector<int16_t>& words, int64_t count) {
  if (words.size() < static_cast<size_t>(count)) words.resize(static_cast<size_t>(count));
  return words.data();
}

}  // namespace

bool is_plain(const layers::Parameter& p) {
  const auto& v = p.value;
  return v.defined() && p.part.empty() && !p.adapter && !p.quantization && v.device().is_cpu() && v.is_contiguous() &&
         (v.scalar_type() == at::kFloat || v.scalar_type() == at::kBFloat16);
}

std::vector<Matrix> matrices_of(layers::Parameter& parameter, WeightFormat format, int64_t parts) {
  const auto value = parameter.value.detach();
  const int64_t inputs = value.size(-1), outputs = value.size(-2) / parts;
  const auto stack = value.view({-1, outputs, inputs});
  std::vector<Matrix> matrices;
  for (int64_t i = 0; i < stack.size(0); ++i) {
    Matrix m{.outputs = outputs, .inputs = inputs};
    auto own = stack[i];
    if (!kernels::has_scales(format)) {
      m.format = value.scalar_type() == at::kFloat ? WeightFormat::fp32 : WeightFormat::bf16;
      m.weights = own;
    } else {
      const int64_t panels = kernels::padded_outputs(format, outputs) / kWeightPanel, bytes = kernels::row_bytes(format, inputs);
      const int64_t groups = kernels::padded_inputs(format, inputs) / kWeightGroup;
      m.format = format;
      m.weights = at::empty({panels, kWeightPanel * bytes}, at::kByte);
      m.scales = at::zeros({panels, groups, kWeightPanel}, at::kFloat);
      const auto wide = own.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
      auto* const numbers = wide.mutable_data_ptr<float>();
      auto* const packed = m.weights.mutable_data_ptr<uint8_t>();
      auto* const scales = m.scales.mutable_data_ptr<float>();
      at::parallel_for(0, panels, 1, [&](int64_t begin, int64_t end) {
        for (int64_t panel = begin; panel < end; ++panel) {
          const int64_t first = panel * kWeightPanel;
          pack(format, numbers + first * inputs, std::min(kWeightPanel, outputs - first), inputs, packed + first * bytes,
               scales + first * groups);
        }
      });
      own.copy_(wide);
    }
    matrices.push_back(std::move(m));
  }
  return matrices;
}

tensor::Range own_share(int64_t outputs, const Worker& worker) {
  const int64_t panels = (outputs + kWeightPanel - 1) / kWeightPanel;
  const auto border = [&](int64_t index) { return std::min(outputs, panels * index / worker.count * kWeightPanel); };
  return {border(worker.index), border(worker.index + 1)};
}

void multiply(Pass& pass, const Rows& x, std::span<const Product> products, const Worker& worker) {
  const auto& first = *products[0].matrix;
  const int64_t rows = x.count;
  FewProductsProblem p{.rows = rows,
                       .inputs = first.inputs,
                       .x = x.x,
                       .x_stride = x.stride,
                       .x_rows = x.rows,
                       .x16 = nullptr,
                       .x8 = nullptr,
                       .x_scale = nullptr,
                       .x_scales = nullptr,
                       .x_sums = nullptr,
                       .format = first.format,
                       .weights = nullptr,
                       .scales = nullptr,
                       .bias = nullptr,
                       .out = nullptr,
                       .out_stride = 0};
  const bool is_paired = first.format == WeightFormat::bf16 && kernels::cpu::best_pair_unit() != kernels::cpu::PairUnit::none;
  // Every worker for itself: to share it out would cost a meeting.
  if (is_paired) {
    p.x16 = room_for(pass.words[static_cast<size_t>(worker.index)], rows * kernels::cpu::paired_inputs(first.inputs));
    kernels::cpu::round_few_rows(p, 0, rows);
  } else if (kernels::has_scales(first.format)) {
    const int64_t padded = kernels::padded_inputs(first.format, first.inputs), groups = padded / kWeightGroup;
    auto* const words = room_for(pass.words[static_cast<size_t>(worker.index)], rows * padded);
    auto& scales = pass.word_scales[static_cast<size_t>(worker.index)];
    if (scales.size() < static_cast<size_t>(rows * (1 + 2 * groups))) scales.resize(static_cast<size_t>(rows * (1 + 2 * groups)));
    p.x_scale = scales.data(), p.x_scales = p.x_scale + rows, p.x_sums = p.x_scales + rows * groups;
    if (first.format == WeightFormat::int8) p.x16 = words;
    else p.x8 = reinterpret_cast<int8_t*>(words);
    kernels::cpu::round_few_rows(p, 0, rows);
  }
  for (const auto& product : products) {
    p.weights = product.matrix->weights.const_data_ptr();
    p.scales = product.matrix->scales.defined() ? product.matrix->scales.const_data_ptr<float>() : nullptr;
    p.bias = product.bias, p.out = product.out, p.out_stride = product.out_stride;
    const auto own = own_share(product.matrix->outputs, worker);
    kernels::cpu::few_products(p, own.begin, own.end);
  }
}

}  // namespace ingot::models::decode
