// Softmax attention of a pass' tokens over what their sequences have in the cache, themselves included.
#pragma once

#include "kernels/attention.h"
#include "kernels/cca.h"
#include "layers/softmax_attention.h"
#include "models/decode/program.h"

namespace ingot::models::decode {

struct Heads {
  int64_t layer = 0, heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  kernels::ScoreRule rule{};
  at::ScalarType dtype = at::kFloat;  // of the cache
};

/// Adds the steps of attention as Llama has it; false where its weights cannot be taken.
bool add_softmax_attention(Program& program, const layers::SoftmaxAttention& attention, const layers::Parameter* out_bias, int64_t layer);

/// Slot::queries, keys and values, [rows, its heads, head_dim] -> Slot::attended. Keys and values go to the cache.
/// `gates`: Slot::wide has what multiplies, before its sigmoid. `sinks` [heads] or null.
void add_attention(Program& program, const Heads& heads, bool gates, const float* sinks);

/// Slot::attended, [rows, inputs] -> Slot::branch.
void add_output(Program& program, layers::Parameter& weight, const layers::Parameter* bias);

}  // namespace ingot::models::decode
