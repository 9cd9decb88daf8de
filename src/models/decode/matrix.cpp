#include "models/decode/matrix.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

namespace ingot::models::decode {
namespace {

using kernels::kWeightGroup, kernels::WeightFormat;
using kernels::cpu::FewProductsProblem;

constexpr int64_t kBlock = 8;  // outputs that one worker has whole

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

// One output's weights into `packed` and `scales`; `weights` becomes what they stand for.
void pack(WeightFormat format, std::span<float> weights, char* packed, float* scales) {
  const auto inputs = static_cast<int64_t>(weights.size()), padded = kernels::padded_inputs(format, inputs);
  std::vector<int8_t> rounded(static_cast<size_t>(padded));
  std::vector<float> group(kWeightGroup);
  for (int64_t first = 0; first < padded; first += kWeightGroup) {
    const int64_t there = std::clamp<int64_t>(inputs - first, 0, kWeightGroup);
    std::fill(group.begin(), group.end(), 0.0f);
    std::copy_n(weights.begin() + first, there, group.begin());
    auto* to = rounded.data() + first;
    const float scale = format == WeightFormat::int8 ? round_group<127>(group.data(), to) : round_group<7>(group.data(), to);
    scales[first / kWeightGroup] = scale;
    for (int64_t i = 0; i < there; ++i) weights[static_cast<size_t>(first + i)] = scale * static_cast<float>(to[i]);
  }
  if (format == WeightFormat::int8) {
    std::copy(rounded.begin(), rounded.end(), reinterpret_cast<int8_t*>(packed));
    return;
  }
  constexpr int64_t kBytes = kernels::kInt4Block / 2;
  for (int64_t first = 0; first < padded; first += kernels::kInt4Block)
    for (int64_t i = 0; i < kBytes; ++i) {
      const auto nibble = [&](int64_t at) { return static_cast<unsigned>(rounded[static_cast<size_t>(first + at)] + 8); };
      packed[first / 2 + i] = static_cast<char>(nibble(i) | nibble(kBytes + i) << 4);
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

std::vector<Matrix> matrices_of(layers::Parameter& parameter, WeightFormat format) {
  auto value = parameter.value.detach();
  if (value.dim() == 2) value = value.unsqueeze(0);
  const int64_t count = value.size(0), outputs = value.size(1), inputs = value.size(2);
  std::vector<Matrix> matrices;
  for (int64_t i = 0; i < count; ++i) {
    Matrix m{.outputs = outputs, .inputs = inputs};
    if (!kernels::has_scales(format)) {
      m.format = value.scalar_type() == at::kFloat ? WeightFormat::fp32 : WeightFormat::bf16;
      m.weights = value[i];
    } else {
      const int64_t bytes = kernels::row_bytes(format, inputs), groups = kernels::padded_inputs(format, inputs) / kWeightGroup;
      m.format = format;
      m.weights = at::empty({outputs, bytes}, at::kByte);
      m.scales = at::empty({outputs, groups}, at::kFloat);
      auto own = value[i];
      const auto wide = own.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
      auto* const numbers = wide.mutable_data_ptr<float>();
      auto* const packed = static_cast<char*>(m.weights.mutable_data_ptr());
      auto* const scales = m.scales.mutable_data_ptr<float>();
      at::parallel_for(0, outputs, 16, [&](int64_t begin, int64_t end) {
        for (int64_t o = begin; o < end; ++o)
          pack(format, {numbers + o * inputs, static_cast<size_t>(inputs)}, packed + o * bytes, scales + o * groups);
      });
      own.copy_(wide);
    }
    matrices.push_back(std::move(m));
  }
  return matrices;
}

tensor::Range own_share(int64_t outputs, const Worker& worker) {
  const int64_t blocks = (outputs + kBlock - 1) / kBlock;
  const auto border = [&](int64_t index) { return std::min(outputs, blocks * index / worker.count * kBlock); };
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
  const bool is_paired = first.format == WeightFormat::bf16 && kernels::cpu::has_bf16_pairs();
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
