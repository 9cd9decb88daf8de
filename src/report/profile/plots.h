// The plots of the page about profiles. Of one machine a plot has a curve for each operation, pass or head size; of two it is about
// one of these and has a curve for each machine.
#pragma once

#include <string>
#include <vector>

#include "report/profile/reader.h"

namespace ingot::report {

/// Rate of a dtype's GEMMs over their sizes, a map for each pass and value of the size that varies least; "" without GEMMs.
std::string gemm_maps(const Measured& machine, const std::string& dtype);

/// Rate of GEMMs over FLOPs.
std::string gemm_plots(const std::vector<Measured>& machines);
/// GEMMs and attention under the roofs of memory and arithmetic, by dtype.
std::string rooflines(const std::vector<Measured>& machines);
std::string memory_plots(const std::vector<Measured>& machines);
std::string attention_plots(const std::vector<Measured>& machines);
/// Bus bandwidth and time of collectives over size, with the fitted lines.
std::string collective_plots(const std::vector<Measured>& machines);

/// "1 KiB", "512 B" without decimals where they are zeros.
std::string short_bytes(double bytes);

}  // namespace ingot::report
