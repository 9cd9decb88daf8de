// A layer or a block of a model under every way of spreading it over ranks, at the same sizes: time, exposed communication, memory and
// messages of each. Ranks are threads of this process, or processes that run the same program.
//
//   tp         matrices cut, every rank has all tokens (layers/tensor_axis.h)
//   sp         tokens cut, weights whole, keys and values gathered; gradients of weights are summed over the ranks
//   tp+sp      both, on two axes of equal size, or sp's twice as long
//   tsp        both folded on one axis (layers/tensor_sequence/)
//   fsdp+cp    sp with weights, gradients and optimizer state cut (ZeRO 3), gathered whole for each layer
//   ring       sp with keys and values going round; ulysses: with tokens exchanged for heads
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/world.h"

namespace ingot::bench {

struct BlockSizes {
  int64_t hidden = 512, heads = 8, kv_heads = 8, head_dim = 0, ffn = 2048, batch = 1;  // head_dim 0: hidden / heads
  std::string dtype = "fp32";
  int64_t resolved_head_dim() const { return head_dim > 0 ? head_dim : hidden / heads; }
};

struct ParallelCase {
  std::string method, layer;  // attention, mlp, block
  int ranks = 1;
  int64_t seq = 0;
  std::string pass;  // forward, backward (on its own), both
};

struct ParallelResult {
  ParallelCase what;
  BlockSizes sizes;
  double time_s = 0, exposed_s = 0;  // of the slowest rank; exposed: a rank stood still for messages
  int64_t peak_bytes = 0;            // tensors of a rank: weights, gradients, activations, buffers
  std::map<std::string, comm::AxisTraffic> operations;  // by kind, send and receive as one; of the rank with the most
  std::string refused;                                  // why the method cannot do this case; then nothing else is set
};

std::vector<std::string> parallel_methods();
std::vector<std::string> parallel_layers();

/// Called by all ranks of `world`; the same on each. The sizes that a method cannot cut are an outcome (refused), not an error.
ParallelResult measure_parallel(const ParallelCase& what, const BlockSizes& sizes, int repeats, comm::World& world);

/// {"results": [...]} as docs/parallel-methods.md has it.
nlohmann::json to_json(const std::vector<ParallelResult>& results);
/// The way back, of results at these sizes.
std::vector<ParallelResult> parallel_results(const nlohmann::json& json, const BlockSizes& sizes);
/// For people: a table for each layer, pass and number of ranks, and the lengths between which one method overtakes another.
std::string parallel_tables(const std::vector<ParallelResult>& results);

}  // namespace ingot::bench
