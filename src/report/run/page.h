// The whole page: one HTML file that needs nothing else, neither network nor script.
#pragma once

#include <string>
#include <vector>

#include "report/page/document.h"
#include "report/run/run_data.h"

namespace ingot::report {

Content content_of(const std::vector<RunData>& runs);

/// `written` is the time that the page shows as its own, as text.
std::string make_page(const std::vector<RunData>& runs, std::string_view written);

}  // namespace ingot::report
