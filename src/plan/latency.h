// How long a model takes to serve on one device: a token at a time behind a context (decode), and a whole prompt (prefill), as generation
// runs them, counted on the counting device. Each operation takes its launch and what is longer of moving its bytes and computing its
// FLOPs; of experts, those that tokens go to, evenly spread. Rooflines: no serving program was measured, and what one does beside the model
// is left out.
#pragma once

#include "models/model.h"
#include "plan/device.h"
#include "plan/rates.h"

namespace ingot::plan {

struct Latency {
  double weight_bytes = 0, cache_bytes = 0;  // read
  double flops = 0;
  int64_t launches = 0;
  double memory_s = 0, compute_s = 0, launch_s = 0;  // what each would take alone
  double total_s = 0;
};

/// A token behind `context` others, for as many users at once: bytes at the memory's bandwidth, FLOPs at the peak.
Latency decode_latency(const models::Model& model, int64_t context, const Device& device, int64_t users = 1);

/// A prompt of `tokens` up to the logits of its last token: matmuls and attention at the rates of their sizes (a cluster's as
/// tabulated in cluster_profile.h), but none faster than its weights are read.
Latency prefill_latency(const models::Model& model, int64_t tokens, const Device& device, const Rates& rates);

}  // namespace ingot::plan
