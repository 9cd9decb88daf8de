// A law of loss, as a document.
#pragma once

#include <vector>

#include "plan/law.h"
#include "plan/report/document.h"

namespace ingot::plan {

/// `budgets`: FLOPs to be spent on one run each; empty: those of ten times the largest run.
Document law_document(const std::vector<LawPoint>& points, const LawFit& fit, std::vector<double> budgets);

}  // namespace ingot::plan
