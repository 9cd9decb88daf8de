#include "train/check_layout.h"

#include <algorithm>

#include "base/error.h"
#include "parallel/pipeline_schedule.h"
#include "train/parallel_model.h"
#include "train/phases.h"

namespace ingot::train {
namespace {

using base::ConfigError;
using mesh::Axis;

void check_tokens(int64_t seq_len, const mesh::ParallelConfig& parallel, const models::Model& model) {
  const auto& layout = model.layout();
  const auto& axis = layout.sequence;
  const int64_t chunks = axis.all_chunks(), fewest = model.halo();
  if (axis.is_on() && (seq_len % chunks != 0 || seq_len / chunks < fewest))
    throw ConfigError(
        "parallel.{} = {} cuts sequences into {} equal pieces of {} tokens or more ({} order); a seq_len of {} cannot be cut so, {} can",
        layout.tensor_sequence.is_on() ? "tensor_sequence" : "context", axis.size, chunks, fewest, parallel.context_order, seq_len,
        chunks * std::max(fewest, (seq_len + chunks - 1) / chunks));
  if (layout.tensor.shards_tokens && seq_len / axis.size % layout.tensor.size != 0)
    throw ConfigError(
        "parallel.tensor = {} does not divide the {} tokens that a rank has of a sequence; parallel.sequence_parallel = false would work",
        layout.tensor.size, seq_len / axis.size);
}

void check_batch(int64_t batch_size, int64_t microbatch, const mesh::ParallelConfig& parallel, const mesh::Mesh& mesh) {
  const int64_t ranks = mesh.size(Axis::data);
  if (batch_size % ranks != 0)
    throw ConfigError("{} sequences per step (train.batch_size) do not divide by {} data ranks; {} would work", batch_size, ranks,
                      (batch_size / ranks + 1) * ranks);
  const int64_t own = batch_size / ranks;
  if (const int stages = mesh.size(Axis::pipeline); stages > 1)
    parallel::check({parallel::schedule_from_name(parallel.pipeline_schedule), stages, static_cast<int>(parallel.pipeline_chunks),
                     static_cast<int>(microbatch > 0 ? own / microbatch : 1)});
  if (microbatch > 0 && own % microbatch != 0)
    throw ConfigError("the {} sequences of a data rank are not a multiple of train.microbatch_size = {}", own, microbatch);
}

}  // namespace

void check_layout(const RunConfig& config, const mesh::Mesh& mesh) {
  check(config);
  auto layout = layout_of(mesh, config.parallel, config.model);
  const auto model = models::create_model(config.model, layout);
  const auto phases = lay_out_phases(config);
  for (size_t i = 0; i < phases.size(); ++i) {
    if (!config.covers(i)) continue;
    check_tokens(phases[i].data.seq_len, config.parallel, *model);
    check_batch(phases[i].batch_size, config.train.microbatch_size, config.parallel, mesh);
    if (phases[i].ramp_steps > 0)
      for (const int64_t batch : {phases[i].ramp_from, phases[i].ramp_from + phases[i].ramp_increment})
        check_batch(batch, config.train.microbatch_size, config.parallel, mesh);
  }
  if (data::has_validation(config.data) && config.train.validation_every > 0) check_tokens(config.data.seq_len, config.parallel, *model);
}

void check_device(const RunConfig& config, at::Device device) {
  if (!device.is_cpu()) return;
  if (config.train.gpu_graphs) throw ConfigError("train.gpu_graphs = true is for GPUs, and this run is on the CPU: leave it out");
  if (config.train.offload != "none" || config.optimizer.offload)
    throw ConfigError("{} takes from a GPU's memory what fits into the host's, and this run is on the CPU: leave it out",
                      config.optimizer.offload ? "optimizer.offload = true" : "train.offload = \"" + config.train.offload + "\"");
}

}  // namespace ingot::train
