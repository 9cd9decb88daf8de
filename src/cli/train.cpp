// `ingot train`: trains a model, or with --dry-run says what that would take.
#include "cli/verb.h"

namespace ingot::cli {

struct TrainOptions {
  std::string config;
  std::vector<std::string> set;
  std::string run_dir, resume = "auto", example;
  bool dry_run = false, settings_help = false, markdown = false, no_forecast = false;
  int64_t stop_after = 0;
};

#ifndef INGOT_COMPUTES
void add_train(Flags& flags) {
  const auto values = std::make_shared<TrainOptions>();
  auto& o = *values;
  auto& verb = flags.verb("train", "train a model as a configuration says", values);
  verb.add_option("config", o.config, "configuration, TOML (configs/ has some)");
  add_set(verb, o.set, "key=value: override a setting; may be given several times");
  verb.add_option("--run-dir", o.run_dir, "where checkpoints, metrics and the log go (default runs/<name of the config>)");
  verb.add_option("--resume", o.resume, "auto (the run directory's newest checkpoint), never, or a checkpoint's path");
  verb.add_option("--stop-after", o.stop_after, "end after this step of a longer run, validated and saved; the same command goes on")
      ->check(kPositive);
  verb.add_flag("--no-forecast", o.no_forecast, "neither measure the machine nor predict: for several runs side by side");
  verb.add_flag("--dry-run", o.dry_run, "print the resolved plan: parameters, memory, FLOPs, predicted step time; train nothing")
      ->excludes("--no-forecast");
  verb.add_flag("--settings", o.settings_help, "print every setting with its type, default and meaning");
  verb.add_option("--example", o.example, "print the settings of a small model of this family: what its parts need beside sizes");
  verb.add_flag("--markdown", o.markdown, "with --settings: as the page docs/settings.md");
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <ATen/Parallel.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/process.h"
#include "base/run_events.h"
#include "base/stack_dump.h"
#include "base/version.h"
#include "bench/gemm_backend_setting.h"
#include "bench/planning.h"
#include "checkpoint/storage/read_ahead.h"
#include "cli/input_file.h"
#include "comm/share_cores.h"
#include "device/device.h"
#include "eval/run_evaluations.h"
#include "mesh/groups.h"
#include "object_store/object_storage.h"
#include "plan/run/forecast.h"
#include "plan/run/out_of_memory.h"
#include "plan/run/program_memory.h"
#include "plan/run/ranks.h"
#include "plan/run/record.h"
#include "plan/run/shape.h"
#include "resilience/seats.h"
#include "resilience/stop_signal.h"
#include "train/check_layout.h"
#include "train/inputs.h"
#include "train/run_checkpoints.h"
#include "train/run_lock.h"
#include "train/stretches.h"
#include "train/trainer.h"

namespace ingot::cli {
namespace {

namespace fs = std::filesystem;

int print_settings(bool markdown) {
  train::RunConfig defaults;
  const auto table = train::settings_of(defaults);
  constexpr const char* kHead =
      "# Settings\n\nMade from the program (`ingot train --settings --markdown`); a test fails when it is out of date.\n"
      "A TOML file sets them, `--set key=value` overrides the file.\n\n";
  if (markdown) std::fputs(kHead, stdout);
  std::fputs((markdown ? table.markdown() : table.help()).c_str(), stdout);
  return 0;
}

// The names and shapes of a model's parameters; nothing where the settings do not make one.
std::map<std::string, std::vector<int64_t>> shapes_of(const models::ModelConfig& config) {
  std::map<std::string, std::vector<int64_t>> shapes;
  try {
    const auto model = models::create_model(config);
    for (const auto& parameter : model->parameters().all()) shapes[parameter->name] = parameter->shape;
  } catch (const base::ConfigError&) {
  }
  return shapes;
}

// Sizes of parts that the family does not have.
void take_back_unused_sizes(models::ModelConfig& config) {
  const models::ModelConfig defaults;
  const auto shapes = shapes_of(config);
  const auto take_back = [&](auto member) {
    auto without = config;
    without.*member = defaults.*member;
    if (shapes_of(without) == shapes) config = without;
  };
  for (const auto member : {&models::ModelConfig::ffn, &models::ModelConfig::expert_ffn, &models::ModelConfig::experts,
                            &models::ModelConfig::router_hidden, &models::ModelConfig::gate_rank})
    take_back(member);
  take_back(&models::ModelConfig::layer_pattern);
  if (config.experts == defaults.experts) config.top_k = defaults.top_k;
}

int print_example(const std::string& family) {
  train::RunConfig config;
  const auto table = train::settings_of(config);
  const double init_std = config.model.init_std;
  config.model = models::small_model(family);
  config.model.init_std = init_std;
  take_back_unused_sizes(config.model);
  std::printf(
      "# The smallest model that has all parts of its family, for tests: the sizes are to be made larger. What is not here is as\n"
      "# 'ingot train --settings' says; configs/ has whole files, with [data], [optimizer] and [train].\n%s",
      table.dump_changed_toml().c_str());
  return 0;
}

int plan_only(const train::RunConfig& config, const comm::RankEnvironment& ranks, bool json) {
  auto phases = nlohmann::ordered_json::array();
  const auto stretches = train::stretches_of(config);
  const auto evaluations = eval::evaluations_of(config);
  for (const auto& stretch : stretches) {
    const auto& own = stretch.config;
    const int64_t world = ranks.size > 1 ? ranks.size : plan::configured_ranks(own.parallel);
    const mesh::Mesh mesh(own.parallel, 0, static_cast<int>(world));
    train::check_layout(own, mesh);
    if (evaluations) evaluations->check_layout(own, mesh);
    train::check_device(own, device::device_named(own.train.device));
    if (ranks.rank != 0) continue;
    // Ranks that are not there yet would share this machine's cores.
    if (ranks.size == 1 && own.train.threads == 0)
      comm::share_cores({.size = static_cast<int>(world), .local_size = static_cast<int>(world)});
    const auto text = plan::dry_run(own, mesh, bench::profile_of_plan(own, world), plan::program_bytes(own), json);
    if (json) {
      const auto plan = nlohmann::ordered_json::parse(text);
      phases.insert(phases.end(), plan.at("phases").begin(), plan.at("phases").end());
      continue;
    }
    if (stretches.size() > 1)
      std::printf("== steps %lld to %lld: %s, recompute %s\n", static_cast<long long>(stretch.first_step + 1),
                  static_cast<long long>(stretch.end_step), mesh.describe().c_str(), own.train.recompute.c_str());
    std::fputs(text.c_str(), stdout);
    if (world > 1) std::fputs(("\n" + plan::describe_ranks(own, mesh)).c_str(), stdout);
  }
  if (json && ranks.rank == 0) std::printf("%s\n", nlohmann::ordered_json{{"phases", std::move(phases)}}.dump(2).c_str());
  return 0;
}

void use_threads(const train::RunConfig& config, const comm::RankEnvironment& ranks) {
  if (config.train.threads > 0) at::set_num_threads(static_cast<int>(config.train.threads));
  else comm::share_cores(ranks);
}

fs::path run_dir_of(const TrainOptions& o) {
  return !o.run_dir.empty() ? fs::path(o.run_dir) : fs::path("runs") / fs::path(o.config).stem();
}

// Where a run writes.
std::vector<fs::path> folders_of(const train::RunConfig& config, const fs::path& run_dir) {
  std::vector<fs::path> folders = {run_dir};
  const auto& checkpoints = config.checkpoint.folder;
  if (config.checkpoint.every > 0 && !checkpoints.empty()) folders.emplace_back(checkpoints);
  return folders;
}

// A launcher of ours says what its ranks die of; others do not.
void record_failure(const fs::path& run_dir, int rank, const base::Error& failure) {
  if (base::environment().heartbeats.empty()) base::record_event(run_dir, "failure", {{"rank", rank}, {"what", failure.what()}});
}

// Through spikes that it goes back from. Whether the run may go on with a next stretch.
bool train_and_go_back(const train::RunConfig& config, train::RunOptions options, const train::Forecast& forecast, mesh::Groups& groups,
                       const resilience::StopSignal& stop, train::Measured& measured) {
  for (std::map<int64_t, int64_t> times;;) {
    train::Trainer trainer(config, options, forecast, groups);
    bool goes_on = false;
    try {
      goes_on = trainer.run(stop);
    } catch (const base::CommError&) {
      throw;
    } catch (const base::Error& failure) {
      record_failure(options.run_dir, groups.world().rank(), failure);
      throw;
    }
    train::add(trainer.measured(), measured);
    const auto& back = trainer.goes_back();
    if (!back) return goes_on;
    if (const int64_t limit = config.resilience.nonfinite_limit; ++times[back->to.step] > limit)
      throw base::NumericError(
          "the run has gone back to step {} {} times, each time over other data (resilience.nonfinite_limit): it is not the data. A lower "
          "optimizer.lr from an earlier checkpoint may help",
          back->to.step, limit);
    options.resume = back->to.path.string();
    options.first_sample = back->first_sample;
  }
}

// Trains as one rank, until that is done or has lost another one.
void train_as(const comm::RankEnvironment& ranks, const TrainOptions& o, const resilience::StopSignal& stop) {
  auto config = train::read_config(o.config, o.set);
  train::apply_log_level(config.log);
  const auto run_dir = run_dir_of(o);
  use_threads(config, ranks);

  // Impossible sizes and missing files end here, on every rank, before anyone waits for another.
  auto stretches = train::stretches_of(config);
  for (const auto& stretch : stretches) train::check_layout(stretch.config, mesh::Mesh(stretch.config.parallel, ranks.rank, ranks.size));
  train::check_files(config);
  const auto evaluations = eval::evaluations_of(config);
  for (const auto& stretch : stretches)
    if (evaluations) evaluations->check_layout(stretch.config, mesh::Mesh(stretch.config.parallel, ranks.rank, ranks.size));
  const auto device = device::device_of_rank(config.train.device, ranks.local_rank);
  for (const auto& stretch : stretches) train::check_device(stretch.config, device);
  const auto world = comm::World::join(ranks, device.is_cuda(),
                                       {.timeout = std::chrono::duration<double>(config.resilience.comm_timeout_s),
                                        .rendezvous_timeout = std::chrono::duration<double>(config.resilience.rendezvous_timeout_s)});
  plan::MachineProfile profile;
  const auto* present = &stretches.front().config;
  train::RunLock lock;
  try {
    const auto refusal = checkpoint::on_first(train::RankTeam(world->everyone()), [&] {
      try {
        lock = train::RunLock(folders_of(config, run_dir), base::program_version(),
                              std::chrono::duration<double>(config.resilience.run_lock_wait_s), object_store::storage_of);
      } catch (const base::ConfigError& in_use) {
        return std::string(in_use.what());
      }
      return std::string();
    });
    if (!refusal.empty()) throw base::ConfigError("{}", refusal);
    if (config.checkpoint.every == 0) {
      resilience::StopSignal::say("\nstopping after this step; nothing is saved, as checkpoint.every = 0; once more to stop at once\n");
      if (world->rank() == 0) base::log_info("this run saves no checkpoints: checkpoint.every = 0");
    }
    const bench::Company company{world.get(), ranks.local_rank, ranks.local_size};
    if (!o.no_forecast) profile = bench::profile_of_run(config, company);
    const bool is_predicted = company.is_first() && !o.no_forecast;
    train::RunOptions options{.run_dir = run_dir,
                              .resume = o.resume,
                              .stop_after = 0,
                              .described = {},
                              .version = base::program_version(),
                              .storage_of = object_store::storage_of,
                              .evaluations = evaluations.get()};
    int64_t known = stretches.size() > 1 ? train::Trainer::resumable_step(config, options) : -1;
    if (world->size() > 1 && stretches.size() > 1) {
      const auto of_first = at::full({1}, known, at::kLong);
      world->everyone().broadcast(of_first, 0);
      known = of_first.item<int64_t>();
    }
    plan::RunForecast all;
    train::Measured measured;
    const base::LoadWatch load;
    for (auto& stretch : stretches) {
      const bool is_last = &stretch == &stretches.back();
      if (!is_last && known >= stretch.end_step) continue;
      present = &stretch.config;
      const mesh::Mesh mesh(present->parallel, ranks.rank, ranks.size);
      if (world->rank() == 0 && world->size() > 1) base::log_info("{}: {}", world->description(), mesh.describe());
      const auto forecast = is_predicted ? plan::forecast_of(*present, mesh, profile, plan::program_bytes(*present)) : plan::RunForecast();
      device::reset_peak_memory(device);
      bench::choose_gemm_backend(stretch.config, options, mesh, device, company);
      config.train.gemm_backend = stretch.config.train.gemm_backend;  // what the run directory says, and a resumed run keeps
      options.described = train::settings_of(config).dump_toml();
      mesh::Groups groups(*world, present->parallel);
      options.stop_after = is_last ? o.stop_after : o.stop_after > 0 ? std::min(o.stop_after, stretch.end_step) : stretch.end_step;
      const bool goes_on = train_and_go_back(*present, options, forecast.numbers, groups, stop, measured);
      plan::add(forecast, all);
      if (!goes_on || (o.stop_after > 0 && o.stop_after <= stretch.end_step)) break;
      options.resume = "auto";  // from its own checkpoint
    }
    const double companions_s = bench::companions_cpu_seconds(company, load.own_cpu_s());
    if (is_predicted) plan::keep_outcomes(all, measured, load.foreign_share(companions_s), run_dir);
  } catch (const base::CommError& failure) {
    base::make_directories(run_dir);
    world->ledger().write(run_dir, world->size(), failure.what());
    throw base::CommError(
        "{}\nThe last operations of this rank are in {}/ledger-rank-{}.json; ingot doctor --ledgers {} says which rank went astray.",
        failure.what(), run_dir.string(), world->rank(), run_dir.string());
  } catch (const std::exception& failure) {
    if (!device::is_out_of_memory(failure)) throw;
    base::log_error("{}", base::message_of(failure));  // first: the explanation needs memory, too
    plan::PhasePlanner planner(*present, mesh::Mesh(present->parallel, ranks.rank, ranks.size), profile, plan::program_bytes(*present));
    throw base::OutOfMemoryError("out of memory: {}", plan::explain_out_of_memory(*present, planner));
  }
}

// What any rank needs, before it is known which one this is: the libraries, the code of the model, the tables of matrix products; and,
// while that is not known, the newest checkpoint, in half of the memory that is left.
checkpoint::ReadAhead warm_up(const TrainOptions& o) {
  const auto config = train::read_config(o.config, o.set);
  train::apply_log_level(config.log);
  models::create_model(config.model);
  const auto x = at::ones({64, 64});
  at::matmul(x, x);
  const auto folder = train::checkpoints_folder(config.checkpoint, run_dir_of(o));
  const bool is_local = &object_store::storage_of(folder) == &checkpoint::local_storage();
  return {folder, is_local ? base::available_memory_bytes() / 2 : 0};
}

}  // namespace

int run_train(const Call& call) {
  const auto& o = call.options<TrainOptions>();
  if (o.settings_help) return print_settings(o.markdown);
  if (!o.example.empty()) return print_example(o.example);
  if (o.config.empty()) throw base::UsageError("ingot train needs a configuration, for instance configs/zaya1-nano.toml");
  require_file(o.config);
  auto environment = base::environment();
  if (o.dry_run) {
    const auto ranks = comm::rank_environment(environment);
    const auto config = train::read_config(o.config, o.set);
    train::apply_log_level(config.log);
    use_threads(config, ranks);
    return plan_only(config, ranks, call.json);
  }
  const resilience::StopSignal stop;
  base::dump_stack_on_signal();
  auto seat = resilience::Seat::of(environment);
  std::string lost;  // and the launcher says how it goes on
  std::optional<checkpoint::ReadAhead> ahead;
  if (seat && seat->is_spare()) ahead = warm_up(o);
  for (bool waits = seat && seat->is_spare();; waits = true) {
    if (waits) {
      auto next = seat->wait(environment, lost, [&] {
        if (ahead) ahead->look();
        return stop.received() != 0;
      });
      ahead.reset();
      if (!next) return lost.empty() ? 0 : 1;
      environment = *std::move(next);
    }
    try {
      train_as(comm::rank_environment(environment), o, stop);
      return 0;
    } catch (const base::CommError& failure) {
      if (!seat || stop.received() != 0) throw;
      lost = failure.what();
    }
    base::log_error("{}", lost);
  }
}

}  // namespace ingot::cli
#endif
