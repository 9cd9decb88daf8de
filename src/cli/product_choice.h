// The library that a run's products go through (kernels/product_library.h).
#pragma once

#include <filesystem>
#include <string>

#include "bench/suite.h"
#include "mesh/mesh.h"
#include "train/config.h"

namespace ingot::cli {

/// Makes train.products a library's name and uses it from here on; the configuration that the run records then says so. "auto" is what
/// the run began with when it goes on, else what the cached profile has as clearly faster for this run's products, else the usual one. Rank
/// 0 decides for all. Call after the forecast. Throws ConfigError for a library that is not here.
void choose_products(train::RunConfig& config, const std::filesystem::path& run_dir, const std::string& resume, const mesh::Mesh& mesh,
                     const bench::Company& company);

}  // namespace ingot::cli
