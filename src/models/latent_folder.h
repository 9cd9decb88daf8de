// What folders of DeepSeek's form have alike. Of latent attention the rotating channels of a head are last and in neighbouring pairs there;
// here they are first and in halves, as the kernels have them, and turn on the way in and out.
#pragma once

#include <vector>

#include "models/stored_tensors.h"

namespace ingot::models {

/// Whether a parameter of latent attention has rotating channels among its rows.
bool is_turned(const layers::Parameter& parameter);
std::vector<StoredPiece> stored_turned(const ModelConfig& config, const layers::Parameter& parameter);
/// Where the pieces are a router's balancing bias, it is transformers' own, e_score_correction_bias, and always there.
void name_correction_bias(std::vector<StoredPiece>& pieces);

}  // namespace ingot::models
