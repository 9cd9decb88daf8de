#include "plan/run/shape.h"

#include <ATen/Parallel.h>

#include <filesystem>

#include "base/environment.h"
#include "base/error.h"
#include "base/process.h"
#include "comm/rank_environment.h"
#include "data/loader.h"
#include "device/device.h"
#include "train/parallel_model.h"
#include "train/run_checkpoints.h"

namespace ingot::plan {

const PipelineFacts::Facts& PipelineFacts::of(const parallel::PipelineShape& shape) {
  const std::array<int, 4> key = {static_cast<int>(shape.schedule), shape.stages, shape.chunks, shape.microbatches};
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  parallel::check(shape);
  const auto timeline = parallel::simulate(shape, {});
  return known_[key] = {timeline.kept, timeline.bubble};
}

std::vector<int64_t> documents_of(const train::Phase& phase) {
  constexpr int64_t kRows = 16;
  if (!phase.data.reset_documents) return {};
  std::vector<int64_t> lengths;
  try {
    for (const auto& source : phase.data.sources)
      if (!data::has_index(source.path)) return {};
    auto settings = phase.data;
    settings.rows = "fixed";
    for (auto& source : settings.sources) source.curriculum = "none", source.curriculum_scores.clear();  // it begins with rows unlike most
    const data::Loader loader(settings, data::Split::train);
    const auto batch = loader.batch(0, std::min(kRows, loader.samples()));
    for (int64_t row = 0; row < batch.batch; ++row) {
      const auto* starts = batch.document_starts.data() + row * batch.seq;
      int64_t from = 0;
      for (int64_t token = 1; token <= batch.seq; ++token) {
        if (token < batch.seq && starts[token] == starts[token - 1]) continue;
        lengths.push_back(token - from);
        from = token;
      }
    }
  } catch (const base::Error&) {
    return {};  // training says what is wrong with the data
  }
  return lengths;
}

RunShape shape_of(const train::RunConfig& config, const train::Phase& phase, const mesh::Mesh& mesh, PipelineFacts& pipelines) {
  const int64_t ranks = mesh.size(mesh::Axis::data);
  const auto share = [&](int64_t batch) { return std::max<int64_t>(1, batch / ranks); };
  RunShape shape{.batch = share(phase.batch_size),
                 .microbatch = config.train.microbatch_size,
                 .seq = phase.data.seq_len,
                 .precision = config.train.precision};
  shape.recompute = models::recompute_from_name(config.train.recompute);
  shape.offloads_activations = config.train.offload == "activations";
  shape.weighs_losses = config.train.dpo_beta > 0;
  shape.uses_graphs = config.train.gpu_graphs;
  shape.is_reproducible = config.train.reproducible;
  shape.optimizer = phase.optimizer;
  shape.validation_batch = config.train.validation_every > 0 && data::has_validation(phase.data) ? share(phase.batch_size) : 0;
  shape.threads = at::get_num_threads();
  shape.world = mesh.world();
  shape.target = device::is_cpu(device::device_named(config.train.device)) ? device::Target::cpu : device::Target::gpu;
  shape.replicas = ranks * mesh.size(mesh::Axis::context);
  shape.zero = config.parallel.zero;
  if (const int stages = mesh.size(mesh::Axis::pipeline); stages > 1) {
    const auto microbatches = static_cast<int>(std::max<int64_t>(1, shape.microbatches()));
    const parallel::PipelineShape pipeline{parallel::schedule_from_name(config.parallel.pipeline_schedule), stages,
                                           static_cast<int>(config.parallel.pipeline_chunks), microbatches};
    const auto& facts = pipelines.of(pipeline);
    shape.kept_microbatches = facts.kept[static_cast<size_t>(mesh.position(mesh::Axis::pipeline))] / pipeline.chunks;
    shape.bubble = facts.bubble;
    shape.weights_later = pipeline.schedule == parallel::Schedule::zero_bubble;
  }
  shape.bucket_bytes = static_cast<int64_t>(config.parallel.bucket_mib * (1 << 20));
  return shape;
}

std::vector<int> stages_like_all(int64_t stages) {
  if (stages <= 1) return {0};
  if (stages == 2) return {0, 1};
  return {0, 1, static_cast<int>(stages) - 1};
}

mesh::Mesh mesh_of_stage(const mesh::ParallelConfig& parallel, int stage, int64_t world) {
  return {parallel, static_cast<int>(stage * (world / std::max<int64_t>(1, parallel.pipeline))), static_cast<int>(world)};
}

void add_host_memory(const train::RunConfig& config, const mesh::Mesh& mesh, const parallel::Layout& layout, RunShape& shape) {
  shape.saves_checkpoints = config.checkpoint.every > 0;
  shape.staging_limit_bytes = config.checkpoint.staging_mib << 20;
  shape.memory_staging_bytes = config.checkpoint.memory_every > 0 ? train::RunCheckpoints::kMemoryStagingBytes : 0;
  if (mesh.world() > 1 && device::device_named(config.train.device).is_cpu())
    shape.shared_bytes = train::shared_bytes(mesh, config.parallel, layout);
}

}  // namespace ingot::plan
