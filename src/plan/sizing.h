// The sizes of a model that suit a device, each with the numbers it came from: from a budget (parameters, FLOPs or tokens) to a shape, the
// layout that trains it and what that takes. What comes from measurements, what from formulas and what is an assumption is said of each
// rule.
//
// A profile knows time and memory, not loss. Where only quality decides (tokens for a parameter, depth against width within a wide range,
// experts for a token), the rule is an assumption that names its source.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/data_parallel.h"
#include "plan/latency.h"
#include "plan/shape_multiples.h"

namespace ingot::plan {

struct SizeRequest {
  bool is_mixture = false;
  // At least one; 0 = not given. `parameters`: all of them; `active`: those that one token meets, embeddings left out.
  double parameters = 0, active = 0, flops = 0, tokens = 0;
  int64_t seq = 4096, vocab = 0;  // 0: by the number of parameters
  int64_t multiple = 0;           // of widths; 0: as measured, or assumed
  int64_t experts = 0;            // 0: as many as cost little throughput
  double share = 0.9;             // of the best rate that GEMMs shall reach
  double batch_tokens = 0;        // of a step; 0: by the number of parameters
};

struct Number {
  std::string what;
  double value = 0;
  std::string unit;
};

struct Rule {
  enum class Basis { measured, modelled, assumed, given };
  std::string name, value;
  Basis basis = Basis::measured;
  std::string reason;
  std::vector<Number> numbers;
};
const char* name_of(Rule::Basis basis);

/// A depth and width with nearly the wanted number of parameters.
struct SizeCandidate {
  models::ModelConfig model;
  int64_t parameters = 0, active_parameters = 0;
  double flops_per_token = 0;
  std::optional<FittedRun> run;  // nothing: does not fit by data parallelism
  StepMemory memory;             // of the run, or the least that it would need
  double mfu = 0;
  bool is_usual = false, is_chosen = false;  // usual: of a width / depth for which the loss is known to differ little

  double aspect() const { return static_cast<double>(model.hidden) / static_cast<double>(model.layers); }
};

struct Sizing {
  std::vector<Rule> rules;
  std::vector<SizeCandidate> candidates;  // from deep to wide
  SizeCandidate chosen;
  int64_t batch = 0, steps = 0;  // sequences of a step
  double tokens = 0, flops = 0;  // of the whole training
  double days = 0;               // 0: does not fit
  std::string toml;
};

/// Throws UsageError where none of its numbers says how large the model shall be.
void check_names_a_size(const SizeRequest& request);

/// `shapes`: what was measured of divisibility, if anything. Throws UsageError for budgets that contradict each other or that no model
/// meets.
Sizing size_model(const SizeRequest& request, DataParallel& devices, const std::optional<ShapeMultiples>& shapes);

/// What was sized as a configuration that training and planning take, but for its data and learning rate.
std::string configuration_of(const Sizing& sizing, int64_t seq, const Device& device);

/// Widths that follow from hidden: heads of `head_dim`, a dense feed-forward of 8/3, or for a mixture half as many query channels as hidden
/// (ZAYA1's compression) and experts as wide as hidden. Widths are multiples of `multiple`.
struct ShapeRule {
  int64_t multiple = 128, head_dim = 128, heads_per_kv = 4, vocab = 32768, experts = 16;
  bool is_mixture = false, ties_embeddings = true;
};
models::ModelConfig shape_of(const ShapeRule& rule, int64_t hidden, int64_t layers);

/// `value` to the nearest multiple, one at least.
int64_t nearest_multiple(double value, int64_t multiple);

}  // namespace ingot::plan
