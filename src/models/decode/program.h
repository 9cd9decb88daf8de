// Where the parts of a model put the steps of a pass, with the matrices and tables that steps share.
#pragma once

#include <deque>
#include <map>
#include <memory>

#include "models/decode/matrix.h"
#include "models/decode/step.h"

namespace ingot::models::decode {

/// Cosines and sines of the tokens of a pass, for layers that turn alike.
class Rotations {
 public:
  explicit Rotations(layers::RotarySettings settings) : settings_(std::move(settings)) {}
  /// Once for each pass, whichever step asks first.
  void prepare(const Pass& pass);
  int64_t half() const { return settings_.rotated / 2; }
  const float* cosine() const { return cosine_.data(); }  // [rows, half]
  const float* sine() const { return sine_.data(); }

 private:
  layers::RotarySettings settings_;
  int64_t pass_ = -1;
  std::vector<double> frequencies_, long_frequencies_;  // the second of longrope alone
  std::vector<float> cosine_, sine_;
};

class Program {
 public:
  explicit Program(kernels::WeightFormat format) : format_(format) {}

  /// Whether all of them can be taken; null ones can.
  bool takes(std::initializer_list<const layers::Parameter*> parameters) const;
  /// Of a parameter in two dimensions; it lives as long as the program.
  const Matrix& matrix(layers::Parameter& parameter) { return stack(parameter).front(); }
  /// Of one in three, each one's outputs cut into `parts` equal ones.
  const std::vector<Matrix>& stack(layers::Parameter& parameter, int64_t parts = 1);
  std::shared_ptr<Rotations> rotations(const layers::RotarySettings& settings);

  template <class S, class... Args>
  void add(Args&&... args) {
    steps_.push_back(std::make_unique<S>(std::forward<Args>(args)...));
  }
  const std::vector<std::unique_ptr<Step>>& steps() const { return steps_; }
  /// Takes back what a part has added that cannot go on.
  void forget_behind(size_t steps) { steps_.resize(steps); }

 private:
  const kernels::WeightFormat format_;
  std::map<const layers::Parameter*, std::vector<Matrix>> matrices_;
  std::map<layers::RotarySettings, std::shared_ptr<Rotations>> rotations_;
  std::vector<std::unique_ptr<Step>> steps_;
};

/// Numbers of a vector that stays in its place, or null.
inline const float* numbers(const layers::Parameter* parameter) { return parameter ? parameter->value.const_data_ptr<float>() : nullptr; }

}  // namespace ingot::models::decode
