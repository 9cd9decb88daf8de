// FLOPs of a model by the convention of layers/cost.h, counted as its forward pass runs on the counting device: some milliseconds.
#pragma once

#include <cstdint>
#include <vector>

#include "models/config.h"

namespace ingot::models {

/// Of one row of `seq` tokens.
struct ForwardFlops {
  std::vector<double> blocks;  // of the first layers: those that differ
  double outside = 0;          // embedding and head
  double of_layer(int64_t layer) const;
};
ForwardFlops count_forward_flops(const ModelConfig& config, int64_t seq);

/// Forward plus backward, per token.
double training_flops_per_token(const ModelConfig& config, int64_t seq);

}  // namespace ingot::models
