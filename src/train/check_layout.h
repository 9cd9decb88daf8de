// Whether a mesh divides a run: its model, batches and sequences. Needs no other rank, so that impossible sizes end on every rank
// before any of them waits for another.
#pragma once

#include "mesh/mesh.h"
#include "train/config.h"

namespace ingot::train {

/// Throws ConfigError with sizes that would work.
void check_layout(const RunConfig& config, const mesh::Mesh& mesh);
/// Throws ConfigError for what such a device cannot do: a CPU has no other memory to offload to.
void check_device(const RunConfig& config, at::Device device);

}  // namespace ingot::train
