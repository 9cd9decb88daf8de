// Mixtures of equal cost, and where the configuration lies among them, as a document.
#pragma once

#include <string>
#include <vector>

#include "plan/expert_width.h"
#include "plan/report/document.h"
#include "plan/run/sizing_device.h"

namespace ingot::plan {

/// Stands below every such comparison.
inline constexpr const char* kExpertCaution =
    "At equal FLOPs fewer experts train faster and answer no slower: what a mixture buys is its parameters, so the fronts that count them "
    "decide. Experts get equal shares of the tokens here; the loss is not predicted.";

/// With what a page about the choices shows, too.
struct ExpertDocument : Document {
  std::string heading;
  std::vector<std::string> sentences;           // where the configuration lies with respect to each front
  std::vector<std::string> columns;             // of a table
  std::vector<std::vector<std::string>> cells;  // its rows, one for each choice
};

/// `choices`: of sweep_experts(), the configuration first. Fits: the configuration does.
ExpertDocument document_of(const ExpertSweep& sweep, const SizingDevice& chosen, const std::vector<ExpertChoice>& choices);

}  // namespace ingot::plan
