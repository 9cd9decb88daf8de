// What a traced pass (trace/pass_trace.h) takes on a machine: each operation by what the profile measured of it, else by the bytes that it
// moves; communication in the order in which the program starts it and waits for it.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <vector>

#include "plan/rates.h"
#include "plan/trace/pass_trace.h"
#include "schedule/cluster.h"

namespace ingot::plan {

/// How long what a pass says to other ranks takes. Values; `duration` may be empty for one rank.
struct Transport {
  std::function<schedule::Duration(const schedule::Communication&)> duration;
  bool cores_communicate = false;  // those that compute: then nothing hides behind computation
  /// How much longer computation takes while communication goes on beside it, as a share of the time of that.
  double slowdown = 0;
};

/// Seconds of a part of a pass.
struct SegmentTime {
  std::array<double, kWorkKinds> kinds{};
  double blocks_s = 0, experts_s = 0;  // that communication along tensor, context and tensor_sequence axes adds, and along the experts'

  double of(WorkKind kind) const { return kinds[static_cast<size_t>(kind)]; }
  double compute_s() const;
  double total_s() const { return compute_s() + blocks_s + experts_s; }
  SegmentTime& operator+=(const SegmentTime& other);
};

struct PassTime {
  SegmentTime forward, backward;
};

/// Traces passes and prices their parts, each once. Used by one thread at a time.
class PassPrices {
 public:
  explicit PassPrices(Rates rates, Transport transport = {}) : rates_(std::move(rates)), transport_(std::move(transport)) {}
  const Rates& rates() const { return rates_; }
  PassTraces& traces() { return traces_; }
  /// One microbatch through the layers of `part`. `documents`: lengths that attention sees, as in RunShape; only for whole rows.
  PassTime of(const models::Model& part, const PassShape& shape, const std::vector<int64_t>& documents = {});

 private:
  PassTime time_of(const BlockPass& block, const std::vector<int64_t>& documents);

  Rates rates_;
  Transport transport_;
  PassTraces traces_;
  std::vector<int64_t> documents_;  // of what is known
  std::map<const BlockPass*, PassTime> known_;
};

/// Seconds of one call of an operation, as it was measured by itself. `siblings`: operations of the forward pass of the same part, by which
/// a matmul of a backward pass is known as the gradient of inputs or of weights.
double price_of(const PassOperation& operation, const std::vector<PassOperation>& siblings, const Rates& rates,
                const std::vector<int64_t>& documents = {});

/// The sizes of an operation that multiplies matrices; nothing for others.
struct MatmulSizes {
  int64_t groups = 1, m = 0, n = 0, k = 0;
};
std::optional<MatmulSizes> matmul_sizes(const PassOperation& operation);

/// A communication of a trace as clusters price it.
schedule::Communication message_of(const device::Trace::Communication& communication);

}  // namespace ingot::plan
