// A traced step for people (a table), programs (JSON) and browsers (Chrome's trace format: chrome://tracing, Perfetto).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "plan/trace/step_trace.h"
#include "schedule/cluster.h"

namespace ingot::plan {

/// `top`: how many kernels, and names in memory.
std::string trace_text(const StepTrace& step, int64_t top);
/// With every operation, its shapes and its scope where `operations` is set.
nlohmann::ordered_json trace_json(const StepTrace& step, bool operations);
/// Lanes: kernels, communication by axis, memory. A kernel takes its launch and the longer of its FLOPs and its bytes at the cluster's
/// rates, a collective its bytes at the link's rate: a picture of the order of things, not a prediction (ingot plan time).
std::string chrome_trace(const StepTrace& step, const schedule::Cluster& cluster, const std::string& dtype);

}  // namespace ingot::plan
