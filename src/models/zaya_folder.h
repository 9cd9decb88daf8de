// ZAYA1 as Zyphra first published it (ZAYA1-base, ZAYA1-8B before mid-2026) and as SGLang and the training forks have it: attention and MoE
// are stages of their own, 2L and 2L + 1 of layer L, under other names, with an expert's matrices apart and residual scales kept with the
// stage that reads them. Settings are scalars or lists with an entry for each stage.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/stored_tensors.h"

namespace ingot::models {

/// Whether a config.json of model type zaya is of this form.
bool is_staged_zaya(const nlohmann::json& config);
/// The same settings under transformers' names. Throws ModelError naming a switch that has no counterpart, or a list whose layers differ.
nlohmann::json unstaged_zaya(const nlohmann::json& config);

/// A tensor that every folder of this form has, and no other.
constexpr const char* kStagedZayaMark = "model.final_norm.weight";
std::vector<StoredPiece> stored_staged_zaya(const ModelConfig& config, const layers::Parameter& parameter);
/// What balances experts during training in AMD's port: no part of the model.
bool is_state_of_staged_zaya(const std::string& tensor);

}  // namespace ingot::models
