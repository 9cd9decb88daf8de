// What all pages share: head, style and script around a body, and the names of the curves that stay in sight above the plots.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ingot::report {

/// Now, as pages show when they were written: "2026-11-27 20:26", in this machine's zone.
std::string local_time();

/// A whole HTML file. `title` is text, `body` is HTML; `written` is the time that the page shows as its own, as text.
std::string document(std::string_view title, std::string_view written, std::string_view body);

/// Names by colour, in the order of the series' numbers; "" for fewer than two. `what` they are, for screen readers.
std::string name_bar(const std::vector<std::string>& names, std::string_view what);

}  // namespace ingot::report
