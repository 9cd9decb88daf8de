// Lists of measurements whose sizes a user chose: GEMMs, attention and streams over memory. Their checks throw UsageError, which names
// the flag of `ingot bench` to change.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/stopwatch.h"
#include "plan/profile.h"
#include "plan/rates.h"

namespace ingot::bench {

/// One measurement, which adds its result to a profile.
struct Measurement {
  std::string label;
  std::function<void(plan::MachineProfile&)> run;
};

/// How and where all of a sweep is measured.
struct Setting {
  std::vector<std::string> dtypes;  // fp32, bf16
  Repeats repeats;
  at::Device device = at::kCPU;
};

/// Linear layers of m rows, k inputs and n outputs, every combination: forward is [m, k] x [k, n], grad_input [m, n] x [n, k] and
/// grad_weight [n, m] x [m, k]. Empty lists take their usual values. Of grouped ones m is the mean of a group's rows.
struct GemmSweep {
  std::vector<int64_t> m, n, k;
  std::vector<std::string> kinds, passes;  // plain, batched, grouped; forward, grad_input, grad_weight
  std::vector<int64_t> groups;             // of batched and grouped ones
  std::vector<double> imbalance;           // of grouped ones: rows of the largest group over their mean

  bool is_given() const;
};
std::vector<Measurement> measurements_of(const GemmSweep& sweep, const Setting& setting);

/// The same list with another way of measuring: `run` gets each GEMM without a rate, its pass, and the profile to add to.
using MeasureGemm = std::function<void(const plan::GemmRate&, plan::Pass, plan::MachineProfile&)>;
std::vector<Measurement> gemm_measurements(const GemmSweep& sweep, const Setting& setting, const MeasureGemm& run);

/// Every combination in which the kv heads divide the heads and the window is shorter than the sequence; window 0: none.
struct AttentionSweep {
  std::vector<int64_t> seq, heads, kv_heads, head_dims, windows, batches;

  bool is_given() const;
};
std::vector<Measurement> measurements_of(const AttentionSweep& sweep, const Setting& setting);

/// Streams over arrays of these bytes on the device, and where it is a GPU those of its host and copies between the two.
std::vector<Measurement> memory_measurements(const std::vector<int64_t>& bytes, const Setting& setting);

/// The usual few grouped and batched GEMMs of one dtype: experts of a small mixture, even and uneven, and chunks of linear attention.
std::vector<Measurement> usual_groups(const std::string& dtype, bool few, const Setting& setting);

/// What tells memory- from compute-bound: a large GEMM of each dtype, and a triad over arrays that no cache holds.
std::vector<Measurement> balance_measurements(bool quick, const Setting& setting);

}  // namespace ingot::bench
