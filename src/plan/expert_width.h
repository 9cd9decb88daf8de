// How wide a mixture's experts should be, how many of them there should be and how many a token should use: every choice with the same
// training FLOPs for a token, or with the same active parameters, with the throughput of its training and its latencies for one user.
//
// What no machine can tell is how good the model becomes. At equal FLOPs a single expert trains fastest; a mixture is chosen for its total
// parameters, which is why they are an objective of their own beside throughput and latency.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "plan/data_parallel.h"
#include "plan/latency.h"
#include "plan/pareto.h"

namespace ingot::plan {

enum class Equal { flops, active };

struct ExpertSweep {
  models::ModelConfig base;  // of a family with experts
  Equal equal = Equal::flops;
  std::vector<int64_t> experts = {1, 2, 4, 8, 16, 32, 64, 128}, top_k = {1, 2, 4, 8};
  int64_t multiple = 64;  // of the experts' width
  TrainingJob job;
  int64_t context = 4096, prompt = 2048;  // tokens behind which one is decoded; of a prompt
};

struct ExpertChoice {
  int64_t experts = 1, top_k = 1, expert_ffn = 0;
  bool is_base = false;
  int64_t parameters = 0, active_parameters = 0;
  double flops_per_token = 0;
  std::optional<FittedRun> run;  // nothing: does not fit
  StepMemory memory;             // of the run, or the least that it would need
  double mfu = 0;
  double tokens_per_expert = 0;  // of a microbatch
  Latency decode, prefill;
  // Among the choices that fit: nothing trains faster with no more latency; and the same where fewer parameters do not count as better
  // either.
  bool on_decode_front = false, on_prefill_front = false, on_decode_capacity_front = false, on_prefill_capacity_front = false;

  bool fits() const { return run.has_value(); }
  double tokens_per_s() const { return run ? run->tokens_per_s() : 0; }
};

/// Objectives, more being better: tokens/s and 1 / latency, and with `with_capacity` total parameters.
Objectives objectives_of(const ExpertChoice& choice, bool decode, bool with_capacity);

/// The multiple of `multiple` (one of it at least) whose FLOPs, or active parameters, come nearest to those of `base`.
int64_t equal_width(const models::ModelConfig& base, Equal equal, int64_t experts, int64_t top_k, int64_t multiple, int64_t seq);

/// The base itself first, then the others, by experts and top_k; combinations with top_k > experts, or whose width would be less than half
/// of `multiple`, are left out. `on_choice` hears how many are done of how many. Throws UsageError for a family without experts.
std::vector<ExpertChoice> sweep_experts(const ExpertSweep& sweep, DataParallel& devices,
                                        const std::function<void(int64_t done, int64_t all)>& on_choice = {});

/// What dominates choice `i` most, among those that fit; `point` counts in `choices`.
Dominator dominator_of(const std::vector<ExpertChoice>& choices, size_t i, bool decode, bool with_capacity);

}  // namespace ingot::plan
