#include "train/run_checkpoints.h"

#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "checkpoint/load/tensor_source.h"
#include "checkpoint/ranks/host_memory.h"
#include "checkpoint/storage/folder.h"
#include "train/metrics/checkpoint_record.h"

namespace ingot::train {

namespace fs = std::filesystem;

namespace {

constexpr const char *kDurable = "checkpoint", *kMemory = "checkpoint in memory";  // axes of their messages
constexpr const char *kBestExtra = "best", *kSpikesExtra = "spikes";

int64_t content_bytes(const fs::path& folder) {
  std::error_code ignored;
  int64_t bytes = 0;
  for (auto at = fs::recursive_directory_iterator(folder, ignored); at != fs::recursive_directory_iterator(); at.increment(ignored))
    if (at->is_regular_file(ignored)) bytes += static_cast<int64_t>(at->file_size(ignored));
  return bytes;
}

bool is_due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

}  // namespace

struct RunCheckpoints::Tier {
  std::unique_ptr<comm::Group> group;  // for the saver's thread
  std::unique_ptr<RankTeam> calling_team, saving_team;
  std::shared_ptr<device::HostCopies> copies;  // of what lies on a GPU
  std::unique_ptr<checkpoint::Saver> saver;
  const checkpoint::HostMemory* memory = nullptr;  // null: the folder of checkpoints
  int64_t last_step = -1;                          // that was saved
  bool is_lost = false;                            // its ranks cannot speak to each other any more
};

RunCheckpoints::RunCheckpoints(const checkpoint::CheckpointConfig& config, Options options, ParallelModel& model, mesh::Groups& groups)
    : config_(config), options_(std::move(options)), model_(model), groups_(groups) {}

RunCheckpoints::~RunCheckpoints() = default;

bool RunCheckpoints::is_background(const std::string& axis) { return axis == kDurable || axis == kMemory; }

fs::path checkpoints_folder(const checkpoint::CheckpointConfig& config, const fs::path& run_dir) {
  return config.folder.empty() ? run_dir / "checkpoints" : fs::path(config.folder);
}

fs::path resume_path(const fs::path& given, const checkpoint::StorageOf& storage_of) {
  try {
    return checkpoint::resolve_checkpoint(given, storage_of(given));
  } catch (const base::CheckpointError& missing) {
    throw base::ConfigError("--resume {}: {}; give auto, never, a checkpoint, or a run directory", given.string(), missing.what());
  }
}

fs::path RunCheckpoints::folder() const { return checkpoints_folder(config_, options_.run_dir); }

fs::path RunCheckpoints::memory_folder() const { return fs::path(config_.memory_folder) / ("ingot-" + options_.run_id); }

const checkpoint::Storage& RunCheckpoints::storage() const { return options_.storage_of(folder()); }

// -- restoring -------------------------------------------------------------------------------------------------------------

std::optional<fs::path> RunCheckpoints::to_resume(const std::set<fs::path>& damaged) const {
  const fs::path own = folder();
  if (options_.resume == "auto") {
    const auto newest = checkpoint::latest(own, damaged, storage());
    return newest ? std::optional(newest->path) : std::nullopt;
  }
  if (options_.resume == "never") {
    if (!checkpoint::all(own, storage()).empty())
      throw base::ConfigError("{} already holds checkpoints; with --resume never choose another --run-dir, or resume with --resume auto",
                              own.string());
    return std::nullopt;
  }
  return resume_path(options_.resume, options_.storage_of);
}

// A run whose checkpoints are all damaged does not begin anew: it would replace what can perhaps be saved of them.
void RunCheckpoints::require_nothing_saved() const {
  const fs::path own = folder();
  const auto saved = checkpoint::all(own, storage());
  if (options_.resume != "auto" || saved.empty()) return;
  throw base::CheckpointError(
      "none of the {} checkpoints in {} can be read; `ingot checkpoint verify {}` says what is damaged. To begin anew, move them away or "
      "choose another --run-dir",
      saved.size(), own.string(), own.string());
}

RunCheckpoints::Restored RunCheckpoints::load(const checkpoint::TeamReader& reader, const std::string& from) {
  const auto ranks = team();
  require_fit(reader.reader(), ranks, model_.optimizer(), config_.strict);
  checkpoint::LoadReport report;
  Restored restored{load_run(reader, model_.optimizer(), &report), reader.extra("data"), {}, {}};
  if (reader.reader().has_extra(kBestExtra)) restored.best = judged_.best = reader.extra(kBestExtra);
  if (reader.reader().has_extra(kSpikesExtra)) restored.spikes = judged_.spikes = reader.extra(kSpikesExtra);
  model_.step().publish_weights();
  if (is_main()) {
    records_.push_back(load_json(from, restored.progress.step, report));
    base::log_info("resumed from {} (step {}) in {}", from, restored.progress.step, base::format_duration(report.phases.total_s));
  }
  return restored;
}

// Memory has the newer one, if it has any, and the folder is there when memory fails. Where the newest of the folder is damaged, memory may
// have the next.
std::optional<RunCheckpoints::Restored> RunCheckpoints::restore_from_memory(int64_t newer_than) {
  const auto ranks = team();
  if (config_.memory_every == 0 || memory_failed_) return std::nullopt;
  if (options_.resume != "auto") {
    checkpoint::for_all(ranks, [&] { checkpoint::forget_host_copies(memory_folder()); });
    return std::nullopt;
  }
  try {
    const auto copy = checkpoint::newest_host_copy(memory_folder(), ranks, newer_than);
    if (!copy) return std::nullopt;
    return load(checkpoint::TeamReader(*copy, {.verify = true, .team = &ranks}), "the memory of the machines, " + memory_folder().string());
  } catch (const base::CheckpointError& failure) {
    if (is_main()) base::log_error("{}; looking in {}", failure.what(), folder().string());
    memory_failed_ = true;
    return std::nullopt;
  }
}

// Rank 0 looks, and all take what it found: a folder may change between two looks. One that turns out to be damaged while it is read is
// damaged for all: they go back to the one before it together.
std::optional<RunCheckpoints::Restored> RunCheckpoints::restore() {
  const auto ranks = team();
  std::set<fs::path> damaged;
  for (;;) {
    const fs::path found = checkpoint::on_first(ranks, [&] {
      const auto source = to_resume(damaged);
      return source ? source->string() : std::string();
    });
    const int64_t step = checkpoint::step_of(found.filename().string()).value_or(-1);
    if (auto restored = restore_from_memory(step)) {
      durable_step_ = step;
      return restored;
    }
    if (found.empty()) {
      checkpoint::on_first(ranks, [&] {
        require_nothing_saved();
        return std::string();
      });
      return std::nullopt;
    }
    try {
      const checkpoint::TeamReader reader(
          found, {.verify = config_.verify, .machine = base::host_name(), .storage = &options_.storage_of(found), .team = &ranks});
      auto restored = load(reader, found.string());
      durable_step_ = restored.progress.step;
      return restored;
    } catch (const DoesNotFit&) {
      throw;
    } catch (const base::CheckpointError& failure) {
      if (options_.resume != "auto") throw;
      damaged.insert(found);
      if (is_main()) base::log_error("{}; looking for an older checkpoint", failure.what());
    }
  }
}

// -- saving ----------------------------------------------------------------------------------------------------------------

std::unique_ptr<RunCheckpoints::Tier> RunCheckpoints::make_tier(
    const char* axis, const std::function<std::unique_ptr<checkpoint::Saver>(const checkpoint::SaveOptions&)>& make) {
  auto tier = std::make_unique<Tier>();
  auto& world = groups_.world();
  std::vector<int> all(static_cast<size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  tier->group = world.group(axis, all, /*in_background=*/true);
  tier->saving_team = std::make_unique<RankTeam>(*tier->group);
  tier->calling_team = std::make_unique<RankTeam>(world.everyone());
  auto options = config_.save_options();
  options.team = tier->saving_team.get();
  options.calling_team = tier->calling_team.get();
  options.storage = &storage();
  tier->copies = copy_from(model_.model().device(), options);
  tier->saver = make(options);
  return tier;
}

std::unique_ptr<RunCheckpoints::Tier> RunCheckpoints::make_memory_tier() {
  const checkpoint::HostMemory* memory = nullptr;
  auto tier = make_tier(kMemory, [&](checkpoint::SaveOptions options) {
    options.staging_bytes = std::min(options.staging_bytes, kMemoryStagingBytes);
    const checkpoint::HostMemoryOptions where{
        .folder = memory_folder(), .machine = base::host_name(), .peer_copy = checkpoint::peer_copy_from_name(config_.memory_peer)};
    auto destination = std::make_unique<checkpoint::HostMemory>(where, *options.team);
    memory = destination.get();
    return std::make_unique<checkpoint::Saver>(std::move(destination), options);
  });
  tier->memory = memory;
  std::shared_ptr<void> keep;
  tier->saver->prepare(items_of(model_.optimizer(), keep), is_main());

  // Two generations, of all ranks of a machine.
  const auto ranks = team();
  const auto own_bytes = 2 * memory->copies() * tier->saver->own_bytes();
  const auto all = checkpoint::gather_everywhere(ranks, [&] { return fmt::format("{} {}", own_bytes, base::host_name()); });
  int64_t needed = 0;
  for (const auto& text : all) {
    const auto space = text.find(' ');
    if (text.substr(space + 1) == base::host_name()) needed += std::stoll(text.substr(0, space));
  }
  checkpoint::for_all(ranks, [&] {
    std::error_code error;
    fs::create_directories(memory_folder(), error);
    const auto there = fs::space(config_.memory_folder, error);
    if (error) throw base::ConfigError("checkpoint.memory_folder {}: {}", config_.memory_folder, error.message());
    const int64_t available = static_cast<int64_t>(there.available) + content_bytes(memory_folder());
    if (available < needed)
      throw base::ConfigError(
          "checkpoints in memory need {} in {} on {}, which has {}: give it more (mount -o remount,size=…), name another "
          "checkpoint.memory_folder, or set checkpoint.memory_every = 0",
          base::format_bytes(needed), config_.memory_folder, base::host_name(), base::format_bytes(available));
  });
  if (is_main())
    base::log_info("every {} steps a checkpoint stays in memory: up to {} in {} of each machine{}", config_.memory_every,
                   base::format_bytes(needed), config_.memory_folder,
                   memory->copies() > 1 ? ", copies of another rank's part included" : "");
  return tier;
}

std::unique_ptr<RunCheckpoints::Tier> RunCheckpoints::make_durable_tier() {
  auto tier = make_tier(kDurable, [&](const auto& options) { return std::make_unique<checkpoint::Saver>(folder(), options); });
  tier->last_step = durable_step_;
  return tier;
}

// After a rank's storage has hung for longer than ranks wait for each other, their background needs another group.
void RunCheckpoints::replace_lost() {
  const auto replace = [&](std::unique_ptr<Tier>& tier, const std::function<std::unique_ptr<Tier>()>& make) {
    if (!tier || tier->calling_team->all(!tier->is_lost)) return;
    auto next = make();
    tier->saver->wait();  // for the storage: this rank may still be at the save that others gave up, and end it well
    collect(*tier);
    next->last_step = tier->last_step;
    tier = std::move(next);
  };
  replace(durable_, [&] { return make_durable_tier(); });
  replace(memory_, [&] { return make_memory_tier(); });
}

void RunCheckpoints::prepare() {
  if (config_.every > 0) durable_ = make_durable_tier();
  if (config_.memory_every > 0) memory_ = make_memory_tier();
  if (durable_ || memory_)
    model_.step().on_update([this] {
      for (auto* tier : {durable_.get(), memory_.get()})
        if (tier) tier->saver->wait_copied();
    });
}

void RunCheckpoints::start(Tier& tier, const Progress& progress, const std::string& data_state) {
  auto extras = extras_of(progress, model_.optimizer(), options_.config_toml, data_state);
  if (judged_.score) extras[checkpoint::kScoreExtra] = fmt::format("{}", *judged_.score);
  if (!judged_.best.empty()) extras[kBestExtra] = judged_.best;
  if (!judged_.spikes.empty()) extras[kSpikesExtra] = judged_.spikes;
  try {
    start_save(*tier.saver, tier.copies.get(), model_.optimizer(), progress, extras, is_main());
  } catch (const base::CommError&) {
    throw;
  } catch (const base::Error& failure) {
    report_failure(tier, progress.step, failure.what());
  }
}

void RunCheckpoints::after_step(const Progress& progress, const Judged& judged, const std::function<std::string()>& data_state) {
  judged_ = judged;
  for (auto* tier : {durable_.get(), memory_.get()})
    if (tier) collect(*tier);
  const bool is_durable = is_due(config_.every, progress.step) || judged.saves;
  if (!is_durable && !is_due(config_.memory_every, progress.step)) return;
  replace_lost();
  if (durable_ && is_durable) return start(*durable_, progress, data_state());
  // One that is late is left out: the next is as good.
  if (memory_ && is_due(config_.memory_every, progress.step) && memory_->calling_team->all(!memory_->saver->is_busy()))
    start(*memory_, progress, data_state());
}

void RunCheckpoints::wait() {
  for (auto* tier : {durable_.get(), memory_.get()})
    if (tier) tier->saver->wait(), collect(*tier);
}

std::optional<checkpoint::StepFolder> RunCheckpoints::newest_within(int64_t first, int64_t last) const {
  std::set<fs::path> too_new;
  for (const auto& known : checkpoint::all(folder(), storage()))
    if (known.step > last) too_new.insert(known.path);
  const auto newest = checkpoint::latest(folder(), too_new, storage());
  return newest && newest->step >= first ? newest : std::nullopt;
}

void RunCheckpoints::remove_later_than(int64_t step) const {
  for (const auto& known : checkpoint::all(folder(), storage()))
    if (known.step > step && !checkpoint::remove_unused(known.path, storage()))
      base::log_warning("{} is in use and stays, although the run goes another way from step {} on", known.path.string(), step);
}

void RunCheckpoints::distrust_later_than(int64_t step) {
  wait();
  if (is_main()) remove_later_than(step);
  memory_.reset();
  checkpoint::forget_host_copies(memory_folder());
}

void RunCheckpoints::finish(const Progress& progress, const std::function<std::string()>& data_state) {
  for (auto* tier : {durable_.get(), memory_.get()}) {
    if (!tier) continue;
    tier->saver->wait();
    collect(*tier);
  }
  if (!durable_) return;
  // A rank that was lost in the last moment of a save does not know that it succeeded: all save again.
  if (!durable_->calling_team->all(progress.step == durable_->last_step)) {
    replace_lost();
    start(*durable_, progress, data_state());
    durable_->saver->wait();
    collect(*durable_);
  }
  if (progress.step != durable_->last_step)
    throw base::CheckpointError("the last checkpoint (step {}) could not be saved; the run directory keeps that of step {}", progress.step,
                                durable_->last_step);
  if (memory_) checkpoint::forget_host_copies(memory_folder());
}

void RunCheckpoints::report_failure(const Tier& tier, int64_t step, const std::string& why) const {
  if (!is_main()) return;
  const auto rest = tier.last_step >= 0 ? fmt::format("that of step {} stays", tier.last_step) : std::string("there is none yet");
  base::log_error("saving the checkpoint of step {}{} failed: {}; training goes on, {}", step, tier.memory ? " in memory" : "", why, rest);
}

void RunCheckpoints::collect(Tier& tier) {
  for (const auto& outcome : tier.saver->finished()) {
    const auto& [report, failure, team_is_lost] = outcome;
    tier.is_lost = tier.is_lost || team_is_lost;
    if (!failure.empty()) {
      report_failure(tier, report.step, failure);
    } else {
      tier.last_step = report.step;
      if (is_main() && !tier.memory)
        base::log_info("saved {} ({} in {}, of which training waited {})", report.path.string(), base::format_bytes(report.data_bytes),
                       base::format_duration(report.phases.total_s), base::format_duration(report.phases.stall_s));
    }
    if (is_main()) records_.push_back(to_json(outcome, tier.memory ? "memory" : "folder"));
  }
}

std::vector<nlohmann::ordered_json> RunCheckpoints::take_records() { return std::exchange(records_, {}); }

}  // namespace ingot::train
