// The page's style sheet and its few lines of script. Without the script everything is still there but the tooltips and the
// switching of runs.
#pragma once

#include <string_view>

namespace ingot::report {

extern const std::string_view kStyleSheet;
extern const std::string_view kScript;

}  // namespace ingot::report
