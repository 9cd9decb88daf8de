#include "layers/sequences.h"

#include <cmath>
#include <numbers>

#include "kernels/fp32_islands.h"

namespace ingot::layers {

using kernels::Fp32Islands;

Sequences::Sequences(int64_t batch, int64_t seq, at::Tensor document_start, int64_t offset, at::Device device)
    : batch_(batch), seq_(seq), offset_(offset), device_(device), document_start_(std::move(document_start)) {
  if (!document_start_.defined()) return;
  document_start_ = document_start_.to(device);
  is_start_ = document_start_.eq(at::arange(seq, document_start_.options()));
}

at::Tensor Sequences::visible_from(int64_t window) {
  const auto found = visible_from_.find(window);
  if (found != visible_from_.end()) return found->second;
  at::Tensor from = document_start_;
  if (window > 0) {
    const auto options = at::TensorOptions().dtype(at::kInt).device(device_);
    const auto edge = (at::arange(seq_, options) + (offset_ + 1 - window)).clamp_min(0).expand({batch_, seq_});
    from = from.defined() ? at::maximum(from, edge) : edge.contiguous();
  }
  return visible_from_[window] = from;
}

const kernels::RotaryTable& Sequences::rotary(const RotarySettings& settings, at::ScalarType dtype) {
  const auto found = rotary_.find(settings);
  if (found != rotary_.end()) return found->second;
  const auto options = at::TensorOptions().dtype(at::kDouble).device(device_);
  auto positions = at::arange(offset_, offset_ + seq_, options).unsqueeze(0);
  if (document_start_.defined()) positions = positions - document_start_;
  const auto wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  auto angles = positions.unsqueeze(-1) * inverse_frequencies(settings).to(device_);  // [batch or 1, seq, rotated / 2]
  if (Fp32Islands::active() && settings.factor == 1) {
    const auto exponents = at::arange(0, settings.rotated, 2, at::kFloat) / static_cast<double>(settings.rotated);
    angles = positions.to(at::kFloat).unsqueeze(-1) * at::pow(settings.base, exponents).reciprocal().to(device_);
  }
  if (Fp32Islands::active()) {
    // Twice side by side, as transformers has them: the last bit of a vectorised cosine depends on where an element lies.
    const auto twice = at::cat({angles, angles}, -1);
    return rotary_[settings] = {twice.cos().narrow(-1, 0, settings.rotated / 2).to(wide),
                                twice.sin().narrow(-1, 0, settings.rotated / 2).to(wide)};
  }
  return rotary_[settings] = {angles.cos().to(wide), angles.sin().to(wide)};
}

at::Tensor inverse_frequencies(const RotarySettings& s) {
  const auto exponents = at::arange(0, s.rotated, 2, at::kDouble) / static_cast<double>(s.rotated);
  auto frequencies = at::pow(s.base, exponents).reciprocal();
  if (s.factor == 1) return frequencies;
  if (s.linear) return frequencies / s.factor;
  // Llama 3: wavelengths longer than the original context are stretched, short ones kept, those between interpolated.
  auto* f = frequencies.data_ptr<double>();
  for (int64_t i = 0; i < frequencies.numel(); ++i) {
    const double turns = static_cast<double>(s.original_positions) * f[i] / (2 * std::numbers::pi);
    const double smooth = std::clamp((turns - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor), 0.0, 1.0);
    f[i] = (1 - smooth) * f[i] / s.factor + smooth * f[i];
  }
  return frequencies;
}

}  // namespace ingot::layers
