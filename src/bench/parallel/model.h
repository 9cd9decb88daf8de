// `ingot bench parallel` for clusters that are not available: the traces of a layer (layer_program.h) replayed with times from a cluster
// profile. A result has the fields that a measured one has (measured.h). A thread at a time.
#pragma once

#include "bench/parallel/layer_program.h"
#include "schedule/cluster.h"
#include "schedule/replay.h"
#include "schedule/sweep.h"

namespace ingot::bench {

/// Throws ConfigError when schedule::check refuses the layout or the cluster has fewer devices than it has ranks.
schedule::Result model(const schedule::Layout& layout, const schedule::Cluster& cluster);
/// What the cluster's devices do, and how long that takes.
struct ModelledLayer {
  LayerProgram layer;
  schedule::Replay replay;
};
ModelledLayer model_layer(const schedule::Layout& layout, const schedule::Cluster& cluster);

/// tp+sp appears once for each factorisation. Throws ConfigError when nothing of the sweep can be laid out, ProfileError when the cluster
/// has no rates of the dtype.
schedule::SweepResult model(const schedule::Sweep& sweep, const schedule::Cluster& cluster);

}  // namespace ingot::bench
