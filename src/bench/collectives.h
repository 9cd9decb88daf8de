// Collectives over sizes, group sizes and placements, as nccl-tests measures them: time, algorithm and bus bandwidth, results checked
// against ones that are known exactly in every dtype. Of each curve the cost of a message, latency + bytes / bandwidth, is fitted, and
// its knee found: the least size that gets nearly all of the bandwidth, which is the size for buckets of gradients.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "device/aten.h"
#include "resilience/stop_signal.h"

namespace ingot::bench {

enum class Collective { all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, send_receive };
const char* name_of(Collective collective);
/// Throws UsageError that lists the names.
Collective collective_from_name(const std::string& name);
std::vector<Collective> all_collectives();

/// What bus bandwidth is of algorithm bandwidth (bytes / time) in a group of `ranks`, so that it compares with a link's. Bytes are
/// those of nccl-tests: a rank's buffer for all_reduce, broadcast, reduce and send_receive, the total of all ranks' for the others.
double bus_factor(Collective collective, int ranks);

/// How the members of a group lie among the ranks of the world: next to each other, or one from each of as many blocks.
enum class Placement { neighbours, strided };
const char* name_of(Placement placement);
Placement placement_from_name(const std::string& name);
/// The group of `ranks` that world rank `rank` of `world` is in; all groups of a placement together are the whole world.
std::vector<int> members_of(Placement placement, int world, int ranks, int rank);

/// Which rank's time counts: nccl-tests' -a.
enum class RankTime { first, mean, least, largest };

struct CollectiveSweep {
  std::vector<Collective> collectives;
  std::vector<std::string> dtypes = {"fp32"};  // fp32, bf16
  int64_t min_bytes = 8, max_bytes = int64_t{64} << 20;
  int64_t step_bytes = 0;  // 0: sizes grow by step_factor
  double step_factor = 2;
  int iterations = 20, warmup = 5;
  bool checks = true;
  int root = 0;                  // of broadcast and reduce, a rank of the group
  std::vector<int> group_sizes;  // empty: all that divide the world, 1 left out
  std::vector<Placement> placements = {Placement::neighbours, Placement::strided};
  RankTime rank_time = RankTime::mean;

  /// Throws UsageError for what cannot be measured in a world of this size.
  void check(int world) const;
  std::vector<int64_t> sizes() const;
  std::vector<int> groups_in(int world) const;
};

struct CollectiveTiming {
  double mean_s = 0;                                  // of back-to-back calls
  double min_s = 0, p50_s = 0, p99_s = 0, max_s = 0;  // of single calls; percentiles of the slowest rank
  int64_t wrong = 0;                                  // elements of all ranks; -1: not checked
};

struct CollectiveResult {
  Collective collective = Collective::all_reduce;
  std::string dtype;
  Placement placement = Placement::neighbours;
  int ranks = 0, groups = 1;  // of a group; groups that worked at once
  int root = -1;
  int64_t bytes = 0, count = 0;  // count: elements of `bytes`
  std::optional<CollectiveTiming> out_of_place, in_place;

  const CollectiveTiming& timing() const { return in_place ? *in_place : *out_of_place; }  // what the program uses
  double algorithm_bandwidth(const CollectiveTiming& t) const { return static_cast<double>(bytes) / t.mean_s; }
  double bus_bandwidth(const CollectiveTiming& t) const { return algorithm_bandwidth(t) * bus_factor(collective, ranks); }
};

/// Results of one collective, dtype, group size and placement over sizes.
struct CollectiveCurve {
  std::vector<CollectiveResult> points;
  // time = latency_s + bytes / bytes_per_s, the sum of squared relative errors being least
  double latency_s = 0, bytes_per_s = 0;
  double median_error = 0, largest_error = 0;  // |fitted / measured - 1|
  int64_t knee_bytes = 0;                      // least size with 90 % of the best bus bandwidth
};
std::vector<CollectiveCurve> curves_of(const std::vector<CollectiveResult>& results);

/// Called by all ranks; the same results on each, of buffers on `device`. `on_case` hears of each case and says whether to go on; all ranks
/// stop when one does not want to.
using OnCollective = std::function<bool(size_t done, size_t all, const std::string& next)>;
std::vector<CollectiveResult> measure_collectives(const CollectiveSweep& sweep, comm::World& world, at::Device device,
                                                  const OnCollective& on_case);

/// In nccl-tests' columns, a table per curve; `with_spread`: least, median, p99 and largest time of single calls as well.
std::string to_table(const std::vector<CollectiveResult>& results, const std::string& description, bool with_spread);
nlohmann::ordered_json to_json(const std::vector<CollectiveResult>& results);
/// What to_json wrote.
std::vector<CollectiveResult> collectives_from_json(const nlohmann::json& json);
int64_t wrong_elements(const std::vector<CollectiveResult>& results);

struct CollectivesRun {
  std::vector<CollectiveResult> results;
  std::string description;  // of the ranks and their machine
};

/// The same with a bar on rank 0 and an end at Ctrl-C, which keeps what was measured. Called by all ranks; or by one thread that starts
/// `ranks` of them. A process has one `stop`, whose note is rank_processes.h's.
CollectivesRun run_collectives(const CollectiveSweep& sweep, comm::World& world, at::Device device, const resilience::StopSignal& stop);
CollectivesRun run_collectives_of_threads(const CollectiveSweep& sweep, int ranks);
nlohmann::ordered_json to_json(const CollectivesRun& run);
/// What to_json wrote.
CollectivesRun collectives_run_from_json(const nlohmann::json& json);

}  // namespace ingot::bench
