// What one rank does of a run, as far as its time and memory depend on it, from the configuration and the mesh.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "mesh/mesh.h"
#include "parallel/pipeline_schedule.h"
#include "plan/run_shape.h"
#include "train/config.h"
#include "train/phases.h"

namespace ingot::plan {

/// As models::recompute_from_name() reads it.
inline const char* recompute_name(models::Recompute recompute) {
  return recompute == models::Recompute::none ? "none" : recompute == models::Recompute::selective ? "selective" : "full";
}

/// How a pipeline of such a shape keeps a stage waiting, as parallel::simulate() plays it; played once for each shape.
class PipelineFacts {
 public:
  struct Facts {
    std::vector<int> kept;  // microbatches, by stage
    double bubble = 0;
  };
  const Facts& of(const parallel::PipelineShape& shape);

 private:
  std::map<std::array<int, 4>, Facts> known_;
};

/// Lengths of the documents in the first rows that a phase trains on, as far as attention tells them apart. Empty when it does not, or when
/// the data is not there.
std::vector<int64_t> documents_of(const train::Phase& phase);

/// What one rank of `mesh` does of a phase.
RunShape shape_of(const train::RunConfig& config, const train::Phase& phase, const mesh::Mesh& mesh, PipelineFacts& pipelines);

/// Stages of a pipeline that stand for all of them: the first has the embedding, the last the head, the second is like those between.
std::vector<int> stages_like_all(int64_t stages);
/// The first rank of a stage, in a job of `world` ranks.
mesh::Mesh mesh_of_stage(const mesh::ParallelConfig& parallel, int stage, int64_t world);

/// What a rank needs of its machine's memory besides: for checkpoints, and, on a CPU, to exchange through.
void add_host_memory(const train::RunConfig& config, const mesh::Mesh& mesh, const parallel::Layout& layout, RunShape& shape);

}  // namespace ingot::plan
