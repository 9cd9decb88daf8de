// The group `parallel` of the settings: how many ranks each axis gets.
#pragma once

#include <cstdint>
#include <string>

#include "base/settings.h"

namespace ingot::mesh {

struct ParallelConfig {
  int64_t pipeline = 1, data = -1, context = 1, tensor = 1, expert = 1, expert_tensor = 1, tensor_sequence = 1;  // data -1: what is left
  int64_t head_buckets = 1;  // tensor_sequence: of a part's kv heads
  std::string pipeline_schedule = "1f1b";
  int64_t pipeline_chunks = 1;  // pieces of the model on each stage
  int64_t zero = 1;             // of the data ranks: 0 all hold all, 1 share optimizer state, 2 gradients too, 3 weights too
  std::string context_method = "ring", context_order = "zigzag", state_method = "lasp2";
  bool sequence_parallel = true;  // between tensor-parallel layers each rank keeps its slice of the tokens
  std::string grad_reduce_dtype = "fp32";
  double bucket_mib = 0;  // of gradients that are reduced at a time; 0 = from the measured bandwidth
};

void declare_settings(base::SettingsTable& table, ParallelConfig& config);

}  // namespace ingot::mesh
