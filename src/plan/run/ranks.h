// The ranks of a run, in words.
#pragma once

#include <string>

#include "mesh/mesh.h"
#include "train/config.h"

namespace ingot::plan {

/// As many as a configuration asks for; data = -1, what is left, counts as one.
int64_t configured_ranks(const mesh::ParallelConfig& parallel);

/// What each rank keeps of the model and of its training, which rank is where in the mesh, and which layers are on which stage: some lines.
std::string describe_ranks(const train::RunConfig& config, const mesh::Mesh& mesh);

}  // namespace ingot::plan
