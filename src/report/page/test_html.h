// For tests: what a page is made of.
#pragma once

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

}  // namespace ingot::report
