// How folders of DeepSeek's form keep latent attention: the rotating channels of a head last and in neighbouring pairs. Here they are first
// and in halves, as the kernels have them, and turn on the way in and out.
#pragma once

#include <vector>

#include "models/stored_tensors.h"

namespace ingot::models {

/// Whether a parameter of latent attention has rotating channels among its rows.
bool is_turned(const layers::Parameter& parameter);
std::vector<StoredPiece> stored_turned(const ModelConfig& config, const layers::Parameter& parameter);

}  // namespace ingot::models
