// Lists of measurements and their runs: what `ingot bench` does, and the short one at the start of a training run.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/progress.h"
#include "bench/sweeps.h"
#include "comm/world.h"
#include "plan/profile.h"

namespace ingot::bench {

struct SuiteOptions {
  bool gemm = false, memory = false, attention = false, kernels = false;
  bool largest = false;             // with kernels: each at its largest size alone, beside what bounds it
  bool groups = false;              // with gemm: a few batched and grouped ones, too
  std::vector<std::string> dtypes;  // fp32, bf16
  bool quick = false;
  bool hasty = false;          // quick, and few repeats: at the start of a run
  int rounds = 1;              // that share out the repeats (rounds.h)
  std::string device = "cpu";  // or cuda:0
  // Instead of the usual sizes, where something of them is given.
  GemmSweep gemm_sweep;
  AttentionSweep attention_sweep;
  std::vector<int64_t> memory_bytes;
  bool libraries = false;  // of gemm: by turns through every library that can multiply, instead of timing the usual one
  bool balance = false;    // a large GEMM and triad with attention, which say what bounds it
};

std::vector<Measurement> measurements_of(const SuiteOptions& options);

/// The ranks that measure together, each in its own process: all begin a measurement at the same time, so that each finds the caches,
/// memory and power of the machine as busy as a training step of theirs would. Ranks of other machines than the first one's, and those
/// for which it has no cores, only wait.
struct Company {
  comm::World* world = nullptr;  // none: alone
  int local_rank = 0, local_size = 1;

  int64_t size() const { return world ? world->size() : 1; }
  bool is_first() const { return !world || world->rank() == 0; }
  /// Ranks of a machine that fit onto its cores with torch's present number of threads.
  int64_t side_by_side() const;
  /// Those of the first machine do, as many as are side by side.
  bool measures() const { return local_rank < side_by_side() && (!world || world->rank() < local_size); }
};

/// What the other ranks of this rank's machine computed for while it did for `own_s`: to it they look like strangers. Called by all ranks.
double companions_cpu_seconds(const Company& company, double own_s);

/// Whether predictions for runs in `dtype` have what they need, and those for so many ranks.
bool knows(const plan::MachineProfile& profile, const std::string& dtype);
bool knows_collectives(const plan::MachineProfile& profile, int64_t ranks);

/// Runs them in turn into `profile` until all are done or `is_stopped` says so on some rank; what was measured stays. Sets the profile's
/// foreign load. `bar`, which is the caller's to finish, goes on from `before`. False when it was stopped. Called by all ranks of the
/// company with the same measurements.
bool run_suite(const std::vector<Measurement>& measurements, plan::MachineProfile& profile, base::ProgressBar& bar,
               const std::function<bool()>& is_stopped, const Company& company = {}, int64_t before = 0);

/// Says that a profile's rates come out too low, if others used much of the machine.
void warn_of_foreign_load(const plan::MachineProfile& profile);

/// Adds the collectives of the company's ranks to `profile`, in place of older ones of groups as large.
void measure_collectives_of(const Company& company, bool quick, plan::MachineProfile& profile);

/// `fresh` with what only `old` has and no suite measures again: the libraries of GEMMs.
plan::MachineProfile replaced_by(plan::MachineProfile fresh, const plan::MachineProfile& old);

/// A profile that knows `dtype` on this machine with torch's present number of threads, and the collectives of the company: the cached
/// one, or a quick one (some seconds), which is then kept in the cache. While another process measures for the same file it waits, two
/// minutes at most, and reads what that kept. An empty `cache_folder` keeps nothing. Called by all ranks; the first one's result counts.
plan::MachineProfile profile_for(const std::string& dtype, const std::string& device, const std::filesystem::path& cache_folder,
                                 const Company& company = {});

/// Measures at a few sizes what predictions of runs in `dtype` need and `profile` lacks. Called by all ranks of the company; what is
/// missing is the first one's to say. `hasty`: few repeats, for many who wait. False when nothing was missing.
bool complete(plan::MachineProfile& profile, const std::string& dtype, const Company& company = {}, bool hasty = false);

/// Everything measured, as tables for people.
std::string tables(const plan::MachineProfile& profile);

/// What bounds attention, for --json: by dtype the machine's balance, the lengths at which shapes turn from memory- to compute-bound (null:
/// never), and each measurement's FLOPs per byte and bound. Empty where GEMMs, triads or attention were not measured.
nlohmann::ordered_json balance_json(const plan::MachineProfile& profile);

}  // namespace ingot::bench
