// The page about results of `ingot bench parallel`: a section for each file, in it plots and tables for each layer, pass and number of
// ranks. A method has one colour on the whole page.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/parallel/reader.h"

namespace ingot::report {

/// `written` is the time that the page shows as its own, as text.
std::string make_parallel_page(const std::vector<ParallelFile>& files, std::string_view written);

}  // namespace ingot::report
