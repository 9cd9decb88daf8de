// Compares this machine's numbers with recorded references: whole models (logits, loss, every gradient, greedy ids),
// single operators, and short training runs. What a reference file holds is described in docs/verify.md.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "device/aten.h"

namespace ingot::verify {

namespace fs = std::filesystem;

struct Tolerance {
  double rtol = 0, atol = 0;  // allowed: |difference| <= rtol * max|reference| + atol, per tensor
};

struct Comparison {
  std::string name;
  double max_abs = 0, max_rel = 0;  // max_rel is relative to the reference's largest magnitude
  std::optional<bool> ids_equal;    // of integer tensors
  bool pass = false;
};

struct Options {
  std::string dtype = "fp32";         // fp64, fp32, bf16
  std::string device = "cpu";         // cpu, cuda
  std::optional<double> rtol, atol;   // override the defaults of each tensor
  std::vector<std::string> settings;  // "key=value" for the model, e.g. model.skip_output=identity
};

struct Report {
  std::vector<Comparison> comparisons;
  bool pass() const;
  nlohmann::json json() const;
  /// A table for people, worst first within each group.
  std::string text() const;
};

/// Model folder against its fixture.safetensors.
Report verify_model(const fs::path& folder, const fs::path& fixture, const Options& options);
/// `name`: muon, adamw or linear_attention, which the file must say that it records.
Report verify_op(const std::string& name, const fs::path& fixture, const Options& options);
/// Ten or so steps of training from the weights in `folder`.
Report verify_trajectory(const fs::path& folder, const fs::path& fixture, const Options& options);

/// Differences of `got` from `reference` (same shape, else ModelError); integers must be equal.
Comparison compare(const std::string& name, const at::Tensor& got, const at::Tensor& reference, const Tolerance& tolerance);

}  // namespace ingot::verify
