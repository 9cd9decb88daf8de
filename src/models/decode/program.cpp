#include "models/decode/program.h"

#include <cmath>

namespace ingot::models::decode {

void Rotations::prepare(const Pass& pass) {
  if (pass_ == pass.number) return;
  pass_ = pass.number;
  const auto host = [&](int64_t tokens) {
    const auto made = layers::inverse_frequencies(settings_, at::kCPU, tokens);
    return std::vector<double>(made.const_data_ptr<double>(), made.const_data_ptr<double>() + made.numel());
  };
  if (frequencies_.empty()) {
    frequencies_ = host(0);
    if (!settings_.short_factors.empty()) long_frequencies_ = host(settings_.original_positions + 1);
  }
  cosine_.resize(static_cast<size_t>(pass.rows() * half()));
  sine_.resize(cosine_.size());
  size_t i = 0;
  for (const auto& token : pass.tokens) {
    const bool is_long = !long_frequencies_.empty() && token.length > settings_.original_positions;
    for (const double frequency : is_long ? long_frequencies_ : frequencies_) {
      const double angle = static_cast<double>(token.position) * frequency;
      cosine_[i] = static_cast<float>(std::cos(angle) * settings_.amplitude);
      sine_[i++] = static_cast<float>(std::sin(angle) * settings_.amplitude);
    }
  }
}

bool Program::takes(std::initializer_list<const layers::Parameter*> parameters) const {
  for (const auto* parameter : parameters)
    if (parameter && !is_plain(*parameter)) return false;
  return true;
}

const std::vector<Matrix>& Program::stack(layers::Parameter& parameter, int64_t parts) {
  const auto found = matrices_.find(&parameter);
  if (found != matrices_.end()) return found->second;
  const auto own = parameter.value.scalar_type() == at::kFloat ? kernels::WeightFormat::fp32 : kernels::WeightFormat::bf16;
  return matrices_[&parameter] = matrices_of(parameter, parameter.keeps_fp32 || !kernels::has_scales(format_) ? own : format_, parts);
}

std::shared_ptr<Rotations> Program::rotations(const layers::RotarySettings& settings) {
  auto& found = rotations_[settings];
  if (!found) found = std::make_shared<Rotations>(settings);
  return found;
}

}  // namespace ingot::models::decode
