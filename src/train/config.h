// The groups `train` and `resilience`, and the configuration of a whole run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/settings.h"
#include "checkpoint/config.h"
#include "data/config.h"
#include "layers/routing_losses.h"
#include "mesh/config.h"
#include "models/config.h"
#include "optim/config.h"
#include "train/metrics/config.h"

namespace ingot::train {

/// A stretch of the run with its own context, data and learning rate. 0, -1 or empty = as in the groups data and optimizer.
struct PhaseConfig {
  std::string name = "main";
  int64_t tokens = 0;  // rounded up to whole steps
  int64_t steps = 0;   // instead of tokens
  int64_t seq_len = 0, batch_size = 0;
  double rope_base = 0, lr = 0, final_lr_fraction = -1;
  int64_t warmup_steps = -1;
  std::string schedule;
  std::vector<std::string> sources;  // "weight path"
  bool reset_dataloader = false, reset_optimizer = false;
  int64_t ramp_from = 0, ramp_increment = 0,
          ramp_steps = 0;        // sequences of its first steps, growing to batch_size; ramp_from 0 = all at once
  std::vector<std::string> set;  // "key=value": layout and the like (train/stretches.h)
};

struct TrainConfig {
  int64_t steps = 1000;
  int64_t batch_size = 8, microbatch_size = 0;  // sequences; microbatch 0 = the whole batch at once
  std::string precision = "fp32", recompute = "none", offload = "none", device = "auto", gemm_backend = "auto";
  bool gpu_graphs = false;
  double balance_loss = 0, router_z_loss = 0, z_loss = 0, mtp_loss = 0.3;  // coefficients
  double dpo_beta = 0, dpo_label_smoothing = 0;
  std::string balance_over = "batch";
  int64_t seed = 1234;
  int64_t threads = 0;        // 0 = all cores
  bool reproducible = false;  // the bits of a step do not depend on how many data ranks there are
  int64_t validation_every = 0, validation_batches = 8;
  std::vector<std::string> evaluations;                // files of tasks
  int64_t evaluation_every = 0, evaluation_limit = 0;  // steps; questions of each task, 0 = all
  std::string best_metric = "validation_loss";         // or an evaluation: its name, or name/metric
  int64_t patience = 0;                                // values of it without a better one; 0 = any number
  std::vector<PhaseConfig> phases;
};

struct ResilienceConfig {
  double comm_timeout_s = 600, rendezvous_timeout_s = 300;
  std::string nonfinite = "skip";  // NaN or Inf in loss or gradients: skip the update, or stop
  int64_t nonfinite_limit = 10;    // consecutive skipped steps before the run stops
  std::string spike = "warn";      // of loss or gradient norm (train/spike_watch.h): off, warn, skip the update, go back, or stop
  double spike_sigmas = 8;
  int64_t spike_window = 128;        // steps
  int64_t spike_back = 100;          // steps before a spike that "back" goes back to at least
  int64_t known_answer_every = 100;  // steps between products whose result is known (kernels/known_answer.h); 0 = never
  int64_t check_replicas_every = 0;  // steps; 0 = never
  double run_lock_wait_s = 10;
};

struct RunConfig {
  models::ModelConfig model;
  data::DataConfig data;
  mesh::ParallelConfig parallel;
  optim::OptimizerConfig optimizer;
  TrainConfig train;
  checkpoint::CheckpointConfig checkpoint;
  ResilienceConfig resilience;
  LogConfig log;

  // Not settings: of train.phases those that this configuration is of (train/stretches.h).
  size_t first_phase = 0, end_phase = SIZE_MAX;
  bool covers(size_t phase) const { return phase >= first_phase && phase < end_phase; }
};

layers::RoutingLossSettings routing_losses_of(const TrainConfig& config);

/// Every setting of a run, bound to `config`.
base::SettingsTable settings_of(RunConfig& config);

/// Checks that need several groups: batch against microbatch, phases, the address of the metrics. Throws ConfigError.
void check(const RunConfig& config);

/// The file with `set` (key=value) over it. Throws ConfigError, FileError or UsageError.
RunConfig read_config(const std::string& path, const std::vector<std::string>& set);

}  // namespace ingot::train
