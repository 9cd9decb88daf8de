// A training run, from an empty run directory or from its last checkpoint to its last step.
//
// The run directory holds config.toml (as resolved), metrics.jsonl, a TensorBoard file, log.txt and checkpoints/.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/storage/folder.h"
#include "data/blend.h"
#include "data/loader.h"
#include "data/prefetcher.h"
#include "data/tokenizer.h"
#include "kernels/known_answer.h"
#include "mesh/groups.h"
#include "resilience/stop_signal.h"
#include "train/best_metric.h"
#include "train/config.h"
#include "train/evaluations.h"
#include "train/metrics/metrics_sink.h"
#include "train/metrics/run_facts.h"
#include "train/parallel_model.h"
#include "train/phases.h"
#include "train/run_checkpoints.h"
#include "train/spike_watch.h"

namespace ingot::train {

/// What is known of the machine and predicted for the run; zero = unknown.
struct Forecast {
  double gemm_flops = 0;        // measured peak of the compute dtype, FLOP/s
  std::vector<double> step_ms;  // of each phase
  int64_t memory_bytes = 0;     // peak over all phases
  // What earlier runs of this machine make of them (plan/track_record.h).
  std::vector<double> calibrated_step_ms;
  int64_t calibrated_memory_bytes = 0;

  static double of_phase(const std::vector<double>& values, size_t phase) { return phase < values.size() ? values[phase] : 0; }
};

/// How a run went, beside its forecast: of every phase, the milliseconds of its steps. Left out are those that were skipped and the first
/// ones behind a start or a change of phase; of the others, the first ten thousand are kept.
struct Measured {
  static constexpr int64_t kWarmUpSteps = 2;
  std::vector<std::vector<double>> step_ms;
  int64_t peak_memory_bytes = 0;  // of the rank that needed most; 0 when no step was made
};

/// What a stretch of a run (train/stretches.h) measured joins what the run did.
void add(const Measured& stretch, Measured& run);

/// Watches the steps of a run from within, on its rank: what a step's time (step_ms) covers lies between the two calls.
class StepWatch {
 public:
  virtual ~StepWatch() = default;
  virtual void before_step() = 0;
  virtual void after_step() = 0;
};

struct RunOptions {
  std::filesystem::path run_dir;
  std::string resume = "auto";                                      // auto, never, or the path of a checkpoint
  int64_t stop_after = 0;                                           // ends after this step, validated and saved; 0 = at the end
  std::string described;                                            // settings of the whole run, TOML; empty = those of the config
  std::string version;                                              // of the program, for run.json
  checkpoint::StorageOf storage_of = checkpoint::local_storage_of;  // of folders of checkpoints
  int64_t first_sample = -1;                                        // of the phase, with which it goes on; -1: the checkpoint's
  StepWatch* watch = nullptr;                                       // must outlive the run
  Evaluations* evaluations = nullptr;                               // of train.evaluations; must outlive the run
};

/// What a run does that met a spike, with resilience.spike = "back".
struct GoBack {
  checkpoint::StepFolder to;
  int64_t first_sample = 0;  // of the phase, that no step has taken so far
};

class Trainer {
 public:
  /// Builds model, optimizer and data, and restores the checkpoint that `resume` asks for. Throws before anything is written.
  /// train.threads is the caller's to apply: what runs before the trainer uses the same threads. All ranks of `groups` make one,
  /// with the same arguments; rank 0 writes the run directory. The groups must outlive it.
  Trainer(RunConfig config, RunOptions options, const Forecast& forecast, mesh::Groups& groups);

  /// Trains to the end, until train.patience is lost, or until `stop` received a signal; then saves, unless checkpoint.every is 0. Returns
  /// whether the run may go on with a next stretch: it came to its own end. Throws
  /// NumericError when too many steps in a row had to be skipped, or at the first when resilience.nonfinite = "stop"; VerificationError
  /// when this rank multiplies wrongly; ReplicaError when ranks hold other bits of the same weights; CheckpointError when the last save
  /// failed.
  bool run(const resilience::StopSignal& stop);
  /// Of the step that the newest checkpoint which `options` would resume from has; -1 without one. By one rank.
  static int64_t resumable_step(const RunConfig& config, const RunOptions& options);

  const Measured& measured() const { return measured_; }
  /// After run(): it is not over, but goes on from there, with another trainer.
  const std::optional<GoBack>& goes_back() const { return goes_back_; }

 private:
  bool is_main() const { return groups_.world().rank() == 0; }
  models::Model& model() const { return parallel_->model(); }
  RankTeam team() { return RankTeam(groups_.world().everyone()); }
  /// This rank's share [first, first + count) of `count` samples from `first` on.
  std::pair<int64_t, int64_t> own_share(int64_t first, int64_t count) const;
  /// Whether any rank received a signal, or somebody has made the file "stop" in the run directory: all stop after the same step.
  bool must_stop(const resilience::StopSignal& stop);
  std::filesystem::path stop_file() const { return options_.run_dir / "stop"; }
  int64_t largest_over_ranks(int64_t value);
  /// Those of rank 0.
  std::vector<double> of_main(const std::vector<double>& values);
  /// By this rank, over all axes, since the start; not what saves say in the background.
  int64_t sent_bytes() const;
  void prepare_run_dir();
  RunFacts facts() const;
  data::LoaderOptions loader_options() const;
  void enter_phase(const Phase& phase);
  /// The weights that data.blend_file wants for the next step.
  void follow_blend(const Phase& phase);
  void record_blend(const Phase& phase);
  void forget_later_blends();
  /// How often the samples of the phase (planned), or those that it has taken so far, go through each source: for the log, and by path.
  nlohmann::ordered_json say_epochs(bool planned) const;
  void check_resumed_data(const Phase& phase) const;
  StepRecord take_step(const Phase& phase);
  void handle_skip(const StepResult& result, int64_t step);
  void handle_spike(int64_t step);
  /// Where to, from a spike in this step; nothing where there is no checkpoint of the phase that is early enough.
  std::optional<GoBack> place_before(int64_t spike);
  /// The next step takes this sample of the phase, and not the one that would be next.
  void pass_over_to(int64_t first_sample);
  void check_products();
  void compare_replicas(ReplicaCheck& check, int64_t step);
  void measure(const StepRecord& record, size_t phase);
  /// In the phase's context, with its RoPE base (which the model has) and on its sources.
  std::optional<double> validate(const Phase& phase);
  /// The record's train.best_metric beside those before; all ranks come to the same.
  RunCheckpoints::Judged judge(const StepRecord& record);
  std::string data_state() const;
  void record_checkpoints();
  bool skips_spikes() const { return config_.resilience.spike == "skip" || config_.resilience.spike == "back"; }
  bool is_due(int64_t every) const { return every > 0 && progress_.step % every == 0; }

  RunConfig config_;
  RunOptions options_;
  Forecast forecast_;
  mesh::Groups& groups_;
  std::string config_toml_;
  std::vector<Phase> phases_;
  std::unique_ptr<ParallelModel> parallel_;
  std::unique_ptr<models::Model> whole_;        // described, never allocated: what is true of all ranks together
  std::vector<double> flops_per_token_;         // of each phase
  std::unique_ptr<data::Tokenizer> tokenizer_;  // null when data.tokenizer is empty
  std::unique_ptr<data::Loader> loader_, validation_;
  std::unique_ptr<data::Prefetcher> prefetcher_;
  std::optional<data::BlendFile> blend_file_;  // of rank 0
  std::unique_ptr<MetricsSink> sink_;
  const Phase* phase_ = nullptr;  // the one that loader_ belongs to
  Progress progress_;
  int64_t began_at_ = 0;      // the step of the checkpoint that was restored, or 0
  std::string resumed_data_;  // loader state of the checkpoint, checked when its phase is entered
  int64_t skipped_in_a_row_ = 0;
  SpikeWatch spikes_;
  std::string spike_;  // of the step under way
  std::optional<GoBack> goes_back_;
  std::optional<kernels::KnownAnswer> known_answer_;  // from the first time that it is asked
  enum class Asked : int64_t { no, by_file, by_signal };
  Asked asked_to_stop_ = Asked::no;
  std::chrono::steady_clock::time_point looked_for_stop_file_{};
  double smoothed_step_ms_ = 0;
  Measured measured_;
  int64_t steps_in_phase_ = 0;  // since the start or the change of phase
  std::string run_id_;
  std::unique_ptr<RunCheckpoints> checkpoints_;
  BestMetric best_;
};

}  // namespace ingot::train
