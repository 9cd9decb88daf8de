// What follows from a profile beside plan/balance.h: steps of the caches, where attention becomes bound by compute, how near kernels come
// to the memory's bandwidth, and the lines of collectives.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/balance.h"
#include "plan/message_line.h"
#include "plan/profile.h"

namespace ingot::report {

/// Where an operation loses a quarter of its rate or more between neighbouring sizes.
struct CacheStep {
  std::string operation;
  int64_t fits_bytes = 0, exceeds_bytes = 0;  // of all arrays together
  double before_bytes_per_s = 0, after_bytes_per_s = 0;
};
std::vector<CacheStep> cache_steps(const std::vector<plan::MemoryRate>& memory, const std::string& operation);
/// How many arrays an operation moves.
int arrays_of(const std::string& operation);

/// Attention of one dtype, shape and pass over lengths.
struct AttentionCurve {
  std::string dtype;
  int64_t head_dim = 0, heads = 0, kv_heads = 0, window = 0;
  int64_t batch = 0;  // 0: that of all of the profile
  bool backward = false;
  std::vector<const plan::AttentionTime*> points;  // ascending in seq; of the profile
  double best_flops_per_s = 0;
  double ridge = 0;                     // FLOPs per byte of the machine's balance; 0 when it is not known
  std::optional<double> turn_seq;       // where attention's intensity reaches the ridge; nothing where it never does
  std::optional<int64_t> measured_seq;  // least length measured from which on 80 % of the best rate are reached
  /// "head of 64, 8/2 heads, window 1024, batch 2"; the last two where they are set.
  std::string name() const;
};
std::vector<AttentionCurve> attention_curves(const plan::MachineProfile& profile);

struct CollectiveLine {
  std::string operation, dtype, placement;
  int64_t ranks = 0, groups = 1;
  std::vector<const plan::CollectiveTime*> points;  // ascending in bytes; of the profile
  plan::MessageLine line;
  double bus_bandwidth(const plan::CollectiveTime& time) const;
  double best_bus_bandwidth() const;
};
std::vector<CollectiveLine> collective_lines(const plan::MachineProfile& profile);

/// "dtype"s in the order in which GEMMs, attention or kernels have them.
std::vector<std::string> dtypes_of(const plan::MachineProfile& profile);

}  // namespace ingot::report
