// What all pages share: head, style and script around a body, and the names of the curves that stay in sight above the plots.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ingot::report {

/// Now, as pages show when they were written: "2026-11-27 20:26", in this machine's zone.
std::string local_time();

/// What a page says: `title` is text, `body` is HTML.
struct Content {
  std::string title, body;
};

/// A whole HTML file. `written` is the time that the page shows as its own, as text; `script`: what it runs besides that of plots.
std::string document(std::string_view title, std::string_view written, std::string_view body, std::string_view script = {});

/// What stands in the <main> of that file.
std::string main_of(std::string_view title, std::string_view written, std::string_view body);

/// A whole HTML file whose script (page/live.js) goes on asking the server that it came from, at "main", for another `main`; `tag` names
/// this one to the server.
std::string live_document(std::string_view title, std::string_view main, std::string_view tag);

/// Names by colour, in the order of the series' numbers; "" for fewer than two. `what` they are, for screen readers.
std::string name_bar(const std::vector<std::string>& names, std::string_view what);

}  // namespace ingot::report
