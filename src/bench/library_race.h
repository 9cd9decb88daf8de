// The libraries that can multiply here (kernels/gemm_backend.h) on the same GEMMs by turns, so that a disturbance meets all alike.
#pragma once

#include <string>
#include <vector>

#include "bench/sweeps.h"

namespace ingot::bench {

/// A plain GEMM by every library of its dtype and device, `rounds` times round; each one's median and middle half. Nothing where there
/// is only one. The process's choice of a library is as before afterwards.
std::vector<plan::GemmBackendRate> race_libraries(const std::string& dtype, plan::Pass pass, int64_t m, int64_t n, int64_t k, int rounds,
                                                  at::Device device);

/// Over the plain GEMMs of `sweep`, or where it gives nothing over linear layers of usual sizes.
std::vector<Measurement> library_measurements(const GemmSweep& sweep, bool quick, const Setting& setting);

/// Each GEMM with its libraries' rates and the fastest, and which library runs of each dtype take; "" without measurements.
std::string library_tables(const plan::MachineProfile& profile);

}  // namespace ingot::bench
