// For tests: what a page is made of.
#pragma once

#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::report {

inline size_t count(const std::string& text, std::string_view part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

// Elements of a name cut out, by searching: a regular expression would recurse for each of their characters.
inline std::string without(std::string page, const std::string& name) {
  const std::string open = "<" + name + ">", close = "</" + name + ">";
  for (size_t from = page.find(open); from != std::string::npos; from = page.find(open, from)) {
    const size_t to = page.find(close, from);
    if (to == std::string::npos) break;
    page.erase(from, to + close.size() - from);
  }
  return page;
}

// Every element is closed by its own end tag, in order. Returns what is wrong, "" if nothing.
inline std::string unbalanced(const std::string& page) {
  static const std::regex kTag(R"(<(/?)([a-z][a-z0-9]*)((?:"[^"]*"|[^">])*?)(/?)>)");
  const std::string text = without(without(page, "style"), "script");
  std::vector<std::string> open;
  for (std::sregex_iterator tag(text.begin(), text.end(), kTag), end; tag != end; ++tag) {
    const std::string name = (*tag)[2];
    if ((*tag)[4].length() > 0 || name == "meta") continue;
    if ((*tag)[1].length() == 0) open.push_back(name);
    else if (open.empty() || open.back() != name) return "</" + name + "> closes <" + (open.empty() ? "" : open.back()) + ">";
    else open.pop_back();
  }
  return open.empty() ? "" : "<" + open.back() + "> stays open";
}

/// The page without its scripts, the library's among them.
inline std::string markup_of(const std::string& page) { return without(page, "script"); }

/// What the page's script draws: the JSON of each figure, with the figure's "title" as HTML.
inline std::vector<nlohmann::json> plots_of(const std::string& page) {
  static constexpr std::string_view kOpen = "<script type=\"application/json\">", kHead = "<h3>";
  std::vector<nlohmann::json> plots;
  for (size_t at = page.find(kOpen); at != std::string::npos; at = page.find(kOpen, at + 1)) {
    const size_t from = at + kOpen.size(), head = page.rfind(kHead, at) + kHead.size();
    plots.push_back(nlohmann::json::parse(page.substr(from, page.find("</script>", from) - from)));
    plots.back()["title"] = page.substr(head, page.find("</h3>", head) - head);
  }
  return plots;
}

/// The first plot of that title; null without one.
inline nlohmann::json plot_of(const std::string& page, std::string_view title) {
  for (auto& plot : plots_of(page))
    if (plot["title"] == title) return plot;
  return nullptr;
}

/// The first series of that name and stroke; null without one.
inline nlohmann::json series_of(const nlohmann::json& plot, std::string_view name, std::string_view stroke) {
  for (const auto& series : plot["series"])
    if (series["name"] == name && series["stroke"] == stroke) return series;
  return nullptr;
}

}  // namespace ingot::report
