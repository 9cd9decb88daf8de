#include "plan/trace/update_trace.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "comm/recording_fabric.h"
#include "device/tracer.h"
#include "mesh/groups.h"
#include "plan/trace/alike_operations.h"
#include "train/parallel_model.h"

namespace ingot::plan {
namespace {

// A stage's first rank: with ZeRO its shares are the fullest. Ranks of a context axis have other tokens as data ranks have, and the same
// weights.
struct Place {
  mesh::ParallelConfig parallel;
  int rank = 0, world = 1;
};

Place place_of(const parallel::Layout& layout, const UpdateShape& shape) {
  Place place{.parallel = axes_of(layout)};
  auto& p = place.parallel;
  p.data = std::lcm(std::max<int64_t>(1, shape.replicas), p.data * p.context);
  p.context = 1;
  p.pipeline = layout.stage.size;
  p.pipeline_chunks = layout.stage.chunks();
  p.zero = shape.zero;
  p.bucket_mib = traced_bucket_mib(shape.bucket_bytes, shape.target);
  const auto stage = static_cast<int>(p.data * p.context * p.tensor * p.tensor_sequence);
  place.world = stage * layout.stage.size;
  place.rank = stage * layout.stage.rank;
  return place;
}

}  // namespace

mesh::ParallelConfig axes_of(const parallel::Layout& layout) {
  mesh::ParallelConfig p;
  const auto& sequence = layout.sequence;
  p.tensor = layout.tensor.size;
  p.sequence_parallel = layout.tensor.shards_tokens;
  p.tensor_sequence = layout.tensor_sequence.size;
  p.head_buckets = layout.tensor_sequence.head_buckets;
  p.context = layout.tensor_sequence.is_on() ? 1 : sequence.size;
  p.context_method = sequence.method->name;
  p.context_order = sequence.zigzag ? "zigzag" : "contiguous";
  p.state_method = sequence.states->name();
  p.expert = layout.experts.size;
  p.expert_tensor = layout.experts.slices;
  const int64_t others = p.tensor * p.context * p.tensor_sequence, experts = p.expert * p.expert_tensor;
  p.data = experts / std::gcd(experts, others);
  p.zero = 0;
  return p;
}

UpdateTrace trace_update(const models::Model& part, const UpdateShape& shape) {
  const auto begin = std::chrono::steady_clock::now();
  UpdateTrace result;
  const auto place = place_of(part.layout(), shape);
  const device::CountingDevice counting(shape.target);
  const auto world = comm::recorded_world(place.rank, place.world);
  mesh::Groups groups(*world, place.parallel);
  device::Tracer tracer(counting.device());
  {
    tracer.record_operations(false);
    const train::TrainingSetup setup{.model = part.config(),
                                     .optimizer = shape.optimizer,
                                     .parallel = place.parallel,
                                     .precision = shape.precision,
                                     .device = counting.device(),
                                     .is_reproducible = shape.is_reproducible};
    train::ParallelModel model(setup, groups);
    const int64_t built = tracer.position();
    for (const auto& tensor : model.optimizer().state()) {
      result.saved_bytes += tensor::element_count(tensor.shape) * static_cast<int64_t>(tensor.flat.element_size());
      if (tensor.flat.is_meta()) result.host_bytes += static_cast<int64_t>(tensor.flat.nbytes());
    }
    // Under ZeRO 3 weights come and go within passes, and under ZeRO 2 gradients do: then only the update's peak is of this trace.
    tracer.record_operations(true);
    model.step().run_without_passes(1e-3);
    const auto trace = tracer.finish();
    for (const size_t i : trace.alive_at(built - 1)) {
      const auto& allocation = trace.allocations[i];
      const auto is_in = [&](const char* name) { return trace.enclosing(allocation.scope, name) >= 0; };
      (is_in("weights") ? result.weights_bytes : is_in("gradients") ? result.gradients_bytes : result.optimizer_bytes) += allocation.bytes;
    }
    std::vector<std::pair<int64_t, int64_t>> changes;  // position, bytes; those of the update
    int64_t level = 0;
    for (const auto& a : trace.allocations) {
      if (trace.enclosing(a.scope, "optimizer") < 0 || a.begin < built) continue;
      changes.emplace_back(a.begin, a.bytes);
      if (a.end != device::Trace::kNever) changes.emplace_back(a.end, -a.bytes);
    }
    std::sort(changes.begin(), changes.end());
    for (const auto& [position, bytes] : changes) result.update_bytes = std::max(result.update_bytes, level += bytes);
    AlikeOperations alike(trace);
    for (const auto& o : trace.operations)
      if (trace.enclosing(o.scope, "dion") >= 0) alike.count(o, result.operations);
    for (const auto& c : trace.communications) {
      const auto is_in = [&](const char* name) { return trace.enclosing(c.scope, name) >= 0; };
      if (is_in(parallel::Buckets::kReduceScope)) result.sums.push_back(c);
      else if (is_in(parallel::Buckets::kGatherScope)) result.gathers.push_back(c);
      else if (is_in("optimizer")) result.update.push_back(c);
    }
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace ingot::plan
