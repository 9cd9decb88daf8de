// A machine whose rates are round numbers, and small models, for the tests of this folder.
#pragma once

#include "models/model.h"
#include "plan/profile.h"

namespace ingot::plan {

/// GEMMs at `gemm` FLOP/s of any shape, attention forward at `gemm` and backward at half of it, memory at `bandwidth`.
inline MachineProfile round_machine(double gemm, double bandwidth) {
  MachineProfile p;
  p.host = "test";
  p.cpu = "a CPU";
  p.device = "cpu";
  p.torch = "2.11.0";
  p.program = "stamp";
  p.date = "2026-01-01T00:00:00Z";
  p.cores = p.threads = 2;
  p.commands = {"by hand"};
  for (const char* dtype : {"fp32", "bf16"}) {
    for (const char* pass : {"forward", "grad_input", "grad_weight"}) p.gemm.push_back({dtype, "plain", pass, 64, 64, 64, gemm});
    const double flops = 4 * (64.0 * 65 / 2) * 2 * 16;
    p.attention.push_back({dtype, 1, 64, 2, 1, 16, flops / gemm, 2 * flops / gemm});
  }
  p.memory.push_back({"triad", 1 << 20, bandwidth});
  return p;
}

inline models::ModelConfig small_model(const std::string& family) {
  models::ModelConfig c;
  c.family = family;
  c.layers = 3;
  c.hidden = 96;
  c.vocab_size = 320;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 32;
  c.ffn = 256;
  c.experts = 4;
  c.expert_ffn = 128;
  c.router_hidden = 32;
  c.rope_fraction = 0.5;
  return c;
}

/// What one of `ranks` ranks of a tensor_sequence axis holds of a model.
inline parallel::Layout folded_layout(int ranks, int64_t head_buckets = 1) {
  parallel::Layout layout;
  layout.tensor_sequence = {.size = ranks, .head_buckets = head_buckets};
  layout.sequence.size = ranks;
  return layout;
}

}  // namespace ingot::plan
