// Run directories that look like real ones, for tests: written by the trainer's own writers, from made-up numbers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ingot::report {

struct FakeRun {
  uint64_t seed = 1;
  int64_t steps = 2000, finished = 2000;
  int64_t tokens_per_step = 32768;
  int64_t moe_layers = 0, experts = 8;
  double start_loss = 9.2, end_loss = 3.1, noise = 0.06;
  double step_ms = 640, prediction_error = -0.06;  // predicted / measured - 1
  int64_t memory_bytes = int64_t{3} << 30;
  int64_t validate_every = 100, evaluate_every = 0;
  std::vector<int64_t> resumed_after;  // steps
  std::vector<int64_t> nonfinite;      // steps with a NaN gradient norm
  double learning_rate = 3e-3;
  std::vector<std::string> sources;          // the second has a loss one nat higher than the first, and so on
  int64_t save_every = 0, memory_every = 0;  // steps between checkpoints; 0: none, and with both no checkpoints.jsonl
  size_t ranks = 8, slow_rank = 5;           // the slow one writes at a quarter of the others' rate
  std::vector<int64_t> failed_saves;         // steps whose save to the folder failed
};

/// Creates the folder with config.toml, run.json, log.txt, metrics.jsonl and, for runs that save, checkpoints.jsonl.
void write_fake_run(const std::filesystem::path& folder, const FakeRun& run);

}  // namespace ingot::report
