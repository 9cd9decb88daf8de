// The plots of the page about data.
#pragma once

#include <string>

#include "data/statistics/inspection.h"

namespace ingot::report {

/// Documents by their length, on a logarithmic axis, in parts by dataset; the lengths of rows are marked.
std::string length_plot(const data::Inspection& inspection);
/// How often the n-th most frequent token occurs.
std::string frequency_plot(const data::VocabularyUse& vocabulary);

}  // namespace ingot::report
