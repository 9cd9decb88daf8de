#include "bench/machine_profile.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "bench/rank_processes.h"
#include "bench/rounds.h"
#include "bench/step_probe.h"
#include "bench/suite.h"
#include "comm/share_cores.h"
#include "comm/world.h"

namespace ingot::bench {
namespace {

// Steps of small models, dtype after dtype, by the ranks of `world`.
void measure_steps(const std::vector<std::string>& dtypes, comm::World& world, plan::MachineProfile& profile) {
  const resilience::StopSignal stop("\nstopping after this step\n");
  std::optional<base::ProgressBar> bar;
  if (world.rank() == 0) bar.emplace("steps of models", static_cast<int64_t>(dtypes.size() * step_probes()), base::ProgressUnit::count);
  base::set_log_level(base::LogLevel::warning);  // lines of runs that do not matter
  int64_t done = 0;
  for (const auto& dtype : dtypes) {
    if (stop.received() != 0) break;
    measure_within_steps(dtype, world, profile, stop, [&](const char* next) {
      if (bar) bar->update(done++, fmt::format("{} {}", next, dtype));
    });
  }
  if (bar) bar->update(done);
  if (bar) bar->finish();
  base::set_log_level(base::LogLevel::info);
}

// What processes of ours measure; nothing when they were told to stop or failed, which is said.
std::optional<plan::MachineProfile> profile_of_processes(const std::string& dtype, int ranks, int rounds, const std::string& start,
                                                         const resilience::StopSignal& stop) {
  try {
    auto profile = plan::MachineProfile::from_json(
        results_of_processes(ranks, {"ingot", "bench", "all", "--quick", "--dtype", dtype, "--rank-rounds", std::to_string(rounds)}, start)
            .dump(),
        "the ranks' profile");
    if (stop.received() == 0) return profile;
  } catch (const base::Error& failure) {
    if (stop.received() == 0) base::log_warning("{}; the profile does without", failure.what());
  }
  if (stop.received() != 0) base::log_warning("stopped; what was measured before is kept");
  return std::nullopt;
}

}  // namespace

void keep_libraries(const plan::MachineProfile& measured) {
  const auto cache = base::environment().cache_folder();
  if (measured.libraries.empty()) {
    base::log_info("one library multiplies here, and none has to be chosen");
    return;
  }
  if (cache.empty()) return;
  auto kept = plan::cached_profile(measured, cache).value_or(plan::describe_machine(measured.threads, 1, measured.device));
  std::erase_if(kept.libraries, [&](const auto& old) {
    return std::any_of(measured.libraries.begin(), measured.libraries.end(), [&](const auto& e) { return e.dtype == old.dtype; });
  });
  kept.libraries.insert(kept.libraries.end(), measured.libraries.begin(), measured.libraries.end());
  const auto path = plan::profile_path(cache, kept);
  plan::write_profile(path, kept);
  base::log_info("kept for runs in {}", path.string());
}

void measure_as_rank(const std::string& file, const std::vector<std::string>& dtypes, const comm::RankEnvironment& ranks, int count) {
  comm::share_cores(ranks);
  const auto world = comm::World::join(ranks, false, {});
  const Company company{world.get(), ranks.local_rank, ranks.local_size};
  const bool goes_on = std::filesystem::exists(file);
  const bool is_side_by_side = company.side_by_side() == company.size();  // ranks that take turns on cores say nothing of steps
  std::vector<plan::MachineProfile> rounds;
  while (std::ssize(rounds) < count) {
    auto profile = goes_on ? plan::read_profile(file) : plan::describe_machine(at::get_num_threads(), company.side_by_side(), "cpu");
    if (!rounds.empty()) profile.collectives = rounds.front().collectives;  // one sweep is enough: it takes as long as a round
    for (const auto& dtype : dtypes) complete(profile, dtype, company);
    if (is_side_by_side) measure_steps(dtypes, *world, profile);
    rounds.push_back(std::move(profile));
  }
  if (world->rank() == 0) base::write_file_atomically(file, middle_of(rounds).to_json());
}

std::vector<int> numbers_of_ranks(const std::string& device) {
  std::vector<int> all;
  for (const int ranks : {2, 4, 8})
    if (device == "cpu" && base::usable_cores() % ranks == 0) all.push_back(ranks);
  return all;
}

bool measure_rounds(const std::string& title, const std::vector<Measurement>& measurements, const RoundsOptions& options,
                    const resilience::StopSignal& stop, plan::MachineProfile& profile) {
  const auto count = static_cast<int64_t>(measurements.size());
  base::ProgressBar bar(title, options.rounds * count, base::ProgressUnit::count);
  std::vector<plan::MachineProfile> rounds;
  bool complete = true;
  while (complete && std::ssize(rounds) < options.rounds) {
    const auto before = std::ssize(rounds) * count;
    complete = run_suite(
        measurements, rounds.emplace_back(profile), bar, [&] { return stop.received() != 0; }, {}, before);
    if (!complete || options.steps_dtype.empty()) continue;
    base::log_info("steps of small models");
    auto with_steps = profile_of_processes(options.steps_dtype, 1, 1, rounds.back().to_json(), stop);
    if (!with_steps) complete = false;
    else rounds.back() = std::move(*with_steps);
  }
  bar.finish(complete ? "" : "stopped; what was measured is kept");
  profile = middle_of(rounds);
  warn_of_foreign_load(profile);
  return complete;
}

bool measure_side_by_side(const std::string& dtype, int ranks, int rounds, const resilience::StopSignal& stop) {
  base::log_info("{} ranks side by side", ranks);
  const auto profile = profile_of_processes(dtype, ranks, rounds, "", stop);
  if (!profile) return false;
  const auto path = plan::profile_path(base::environment().cache_folder(), *profile);
  plan::write_profile(path, *profile);
  base::log_info("wrote {}", path.string());
  return true;
}

}  // namespace ingot::bench
