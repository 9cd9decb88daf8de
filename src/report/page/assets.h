// Files that every page has inside, as they lie in the program (cmake/Embed.cmake).
#pragma once

#include <string_view>

namespace ingot::report {

extern const std::string_view kStyleSheet;   // page/style.css
extern const std::string_view kPlotScript;   // plots/plots.js
extern const std::string_view kLiveScript;   // page/live.js
extern const std::string_view kTokenScript;  // data/tokens.js
extern const std::string_view kDygraphs;     // Debian's dygraph.min.js, with its licence on top

}  // namespace ingot::report
