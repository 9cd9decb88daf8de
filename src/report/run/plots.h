// Which plots a page has and what goes into them.
#pragma once

#include <string>
#include <vector>

#include "report/run/run_data.h"

namespace ingot::report {

/// Training and validation loss, large.
std::string loss_plot(const std::vector<RunData>& runs);

/// Of each run of several sources the training loss of each; "" for others.
std::string source_plots(const std::vector<RunData>& runs);

/// Gradient norm, learning rate, throughput, step time and memory beside their predictions, expert imbalance; those for
/// which some run has values.
std::string small_plots(const std::vector<RunData>& runs);

/// Of each task of train.evaluations its metric over steps with a 95 % interval; "" for runs without.
std::string evaluation_plots(const std::vector<RunData>& runs);

/// Expert load over layers and steps, and over layers and experts; "" for dense runs.
std::string expert_plots(const std::vector<RunData>& runs);

}  // namespace ingot::report
