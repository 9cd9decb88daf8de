// The layouts that layouts_test.cpp compares with one rank, and the small models that they train. A family of models/families/ has layouts
// of its own by being there.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "models/config.h"
#include "models/forward_context.h"

namespace ingot::train {

struct TestLayout {
  mesh::ParallelConfig parallel;
  int ranks;
  std::string family = "llama", precision = "fp64", optimizer = "muon", linear = {};  // linear: a variant, empty = the family's
  models::Recompute recompute = models::Recompute::none;
  int64_t microbatch = 0, seq = 12;
  int64_t window = 0;  // of every other layer
  bool spread = false, tie = true, biases = false, force_balance = false;
  int64_t top_k = 0, kv_heads = 12;                          // top_k 0 = the family's
  std::vector<std::string> mixers = {}, feed_forwards = {};  // in place of the family's
  bool replayed = false;                                     // tokens go to the experts that they went to on one rank
  bool emulated = false;                                     // ranks have emulated devices
  bool by_night = false;                                     // by day its parts are in other layouts
  double bucket_mib = 0.01, clip = 1;
  bool is_special = false;  // multipliers, capped logits and their loss, learning rates by width
  double qk_clip = 0;       // beyond which queries and keys are scaled back
  int64_t lora = 0;         // rank of adapters, which alone are trained
  bool pairs = false;       // of answers, learned by DPO
  bool encoder = false;     // tokens see those behind them
  int64_t draft = 0;        // tokens that are drafted in one pass
  int64_t mtp = 0;          // predictors of further tokens
  bool variable = false;    // rows of their own lengths
  bool longrope = false;    // rotation with factors of rows longer than the original context
  bool reproducible = false;
  std::string balance = {};  // whose tokens the balance loss looks at; empty = no losses of routers
};

models::ModelConfig model_of(const TestLayout& layout);
/// As a test's name, and as docs/support.md's test looks for it.
std::string name_of(const TestLayout& layout);
std::vector<TestLayout> test_layouts();
void PrintTo(const TestLayout& layout, std::ostream* out);
/// Of each kind one that runs on emulated devices, too; by day as few as have every family and part of a layout.
std::vector<TestLayout> emulated_layouts();

}  // namespace ingot::train
