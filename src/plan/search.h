// Looks for the ways of spreading a training run over devices that take the least time: every mesh, ZeRO stage, recomputation and
// microbatch that divides the model and fits into memory, judged by the same models of time and memory as any run's. What cannot be best
// is not looked at: states that do not fit, less memory at more time than something that fits already, and what takes far more time than
// the best even at its lower bound.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mesh/config.h"
#include "plan/communication.h"
#include "plan/memory.h"
#include "plan/time.h"

namespace ingot::plan {

struct Choice {
  mesh::ParallelConfig parallel;
  int64_t microbatch = 1;  // sequences
  models::Recompute recompute = models::Recompute::none;

  int64_t ranks() const {
    const auto& p = parallel;
    return p.pipeline * p.data * p.context * p.tensor * p.tensor_sequence;
  }
};

struct Judged {
  Choice choice;
  StepMemory memory;
  StepTime time;
  StepCommunication communication;
  double bubble = 0;

  double step_s() const { return time.total_s() + communication.total_s(); }
};

struct SearchSpace {
  int64_t devices = 1, devices_per_node = 8;
  int64_t layers = 1, heads = 1, experts = 0;  // of the model; experts 0: none
  bool has_experts = false, mixes_linearly = false;
  int64_t batch = 1, seq = 1;  // sequences of a step, tokens of one
  int64_t memory_bytes = 0;    // of a device
  double least_compute_s = 0;  // of a step on all devices at the best GEMM rate: no layout takes less
};

/// How a choice is judged; the search calls them in this order, and the next only where the one before agrees.
struct Judge {
  std::function<bool(const Choice&)> is_possible;     // it divides the model
  std::function<double(const Choice&)> least_s;       // a lower bound of its time, whatever its ZeRO stage and recomputation
  std::function<int64_t(const Choice&)> least_bytes;  // a lower bound of its memory
  std::function<StepMemory(const Choice&)> memory;
  std::function<Judged(const Choice&, const StepMemory&)> whole;
};

struct SearchResult {
  std::vector<Judged> fitting;                                    // by time
  std::vector<Judged> pareto;                                     // of those: nothing takes less time with no more memory
  int64_t meshes = 0, impossible = 0, too_large = 0, behind = 0;  // meshes looked at; of those: do not divide, do not fit, too slow
  std::optional<Choice> smallest;                                 // needs least of those that do not fit, when nothing fits
  int64_t smallest_bytes = 0;                                     // what it needs
};

/// `on_mesh` hears how many meshes are done of how many.
SearchResult search(const SearchSpace& space, const Judge& judge, const std::function<void(int64_t done, int64_t all)>& on_mesh = {});

/// What stands in the way of a shorter step: "compute", "communication of gradients", "bubble", …, with its share; and memory where it
/// decided.
std::string binding(const Judged& judged, int64_t memory_bytes);
/// "pipeline 2 x data 4 x tensor 8, zero 1, 2 at a time, recompute none"
std::string label(const Choice& choice);
/// Lines for a configuration.
std::string as_toml(const Choice& choice);

}  // namespace ingot::plan
