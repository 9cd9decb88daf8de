// The checkpoints of a run: the newest one that all ranks can read is restored; new ones are written while training goes on, into the
// folder of checkpoints and, more often, into the memory of the machines.
//
// All ranks make one and call its functions in the same order.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/storage/storage.h"
#include "mesh/groups.h"
#include "train/checkpointing.h"
#include "train/parallel_model.h"

namespace ingot::train {

/// Where a run's checkpoints lie.
std::filesystem::path checkpoints_folder(const checkpoint::CheckpointConfig& config, const std::filesystem::path& run_dir);

/// The checkpoint that --resume names: itself, or the newest in a folder of checkpoints or of a run directory. Throws ConfigError where
/// there is none.
std::filesystem::path resume_path(const std::filesystem::path& given, const checkpoint::StorageOf& storage_of);

class RunCheckpoints {
 public:
  static constexpr int64_t kMemoryStagingBytes = int64_t{64} << 20;  // what goes to memory does not wait for it long

  struct Options {
    std::filesystem::path run_dir;
    std::string run_id;           // tells this run's copies in memory from those of others
    std::string resume = "auto";  // auto, never, or the path of a checkpoint
    std::string config_toml;      // as resolved
    checkpoint::StorageOf storage_of = checkpoint::local_storage_of;
  };
  /// Model and groups must outlive it.
  RunCheckpoints(const checkpoint::CheckpointConfig& config, Options options, ParallelModel& model, mesh::Groups& groups);
  ~RunCheckpoints();

  struct Restored {
    Progress progress;
    std::string data_state;
    std::string best;    // record of train.best_metric (train/best_metric.h); empty when there was none
    std::string spikes;  // of train/spike_watch.h; the same
  };
  /// What is known of a step, beside its weights.
  struct Judged {
    std::optional<double> score;  // less is better; checkpoint.keep_best goes by it
    std::string best;             // the record of the best so far
    std::string spikes;           // and of what spikes are held against, where they are skipped
    bool saves = false;           // a checkpoint is due, whatever the step
  };
  /// Fills weights and moments as `resume` asks; nothing when there is no checkpoint. Throws CheckpointError when there are some and none
  /// can be read.
  std::optional<Restored> restore();

  /// Before the first step: takes the memory that saving needs.
  void prepare();
  /// After each step: collects saves that have ended, and begins those that are due.
  void after_step(const Progress& progress, const Judged& judged, const std::function<std::string()>& data_state);
  /// Waits for what is being saved; a failed save is a warning.
  void wait();
  /// The newest sound checkpoint in the folder that has a step of [first, last]. On rank 0.
  std::optional<checkpoint::StepFolder> newest_within(int64_t first, int64_t last) const;
  /// Removes those of later steps: the run goes on from before them, another way. On rank 0, with nothing being saved.
  void remove_later_than(int64_t step) const;
  /// What was saved behind `step`, on disk and in memory, is wrong: removes it. By all ranks.
  void distrust_later_than(int64_t step);
  /// After the last: saves it, unless it is saved, and waits. Throws CheckpointError when that fails.
  void finish(const Progress& progress, const std::function<std::string()>& data_state);

  /// Lines of checkpoints.jsonl since the last call; on rank 0.
  std::vector<nlohmann::ordered_json> take_records();
  /// Messages of saving, which belong to no step, are counted under these.
  static bool is_background(const std::string& axis);

 private:
  /// One place where checkpoints go: its own thread, group and staging memory.
  struct Tier;
  bool is_main() const { return groups_.world().rank() == 0; }
  RankTeam team() { return RankTeam(groups_.world().everyone()); }
  std::filesystem::path folder() const;
  std::filesystem::path memory_folder() const;
  const checkpoint::Storage& storage() const;
  std::optional<std::filesystem::path> to_resume(const std::set<std::filesystem::path>& damaged) const;
  void require_nothing_saved() const;
  std::unique_ptr<Tier> make_tier(const char* axis,
                                  const std::function<std::unique_ptr<checkpoint::Saver>(const checkpoint::SaveOptions&)>& make);
  std::unique_ptr<Tier> make_durable_tier();
  std::unique_ptr<Tier> make_memory_tier();
  void replace_lost();
  Restored load(const checkpoint::TeamReader& reader, const std::string& from);
  std::optional<Restored> restore_from_memory(int64_t newer_than);
  void start(Tier& tier, const Progress& progress, const std::string& data_state);
  void collect(Tier& tier);
  void report_failure(const Tier& tier, int64_t step, const std::string& why) const;

  checkpoint::CheckpointConfig config_;
  Options options_;
  ParallelModel& model_;
  mesh::Groups& groups_;
  std::unique_ptr<Tier> durable_, memory_;  // null: off
  int64_t durable_step_ = -1;               // of the checkpoint that was restored, or was there
  bool memory_failed_ = false;              // at this start
  Judged judged_;                           // of the last step
  std::vector<nlohmann::ordered_json> records_;
};

}  // namespace ingot::train
