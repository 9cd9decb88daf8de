// The library that a run's matmuls go through (kernels/gemm_backend.h).
#pragma once

#include <filesystem>
#include <string>

#include "bench/suite.h"
#include "mesh/mesh.h"
#include "train/config.h"
#include "train/trainer.h"

namespace ingot::bench {

/// Makes train.gemm_backend a library's name and uses it on `device`, this rank's, from here on; the configuration that the run records
/// then says so. "auto" is what the run began with when it goes on, else what the cached profile has as clearly faster for this run's
/// matmuls, else the default one. Rank 0 decides for all. Call after the forecast. Throws ConfigError for a library that is not here.
/// `options`: where the run goes on from.
///
/// With "tuned" each rank keeps what it chooses in <run_dir>/gemm_algorithms/rank_<rank>.json, and a machine's first one in the cache, too;
/// ConfigError where ranks repeat layers.
void choose_gemm_backend(train::RunConfig& config, const train::RunOptions& options, const mesh::Mesh& mesh, at::Device device,
                         const Company& company);

}  // namespace ingot::bench
