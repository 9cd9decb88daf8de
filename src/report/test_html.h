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

// Every element is closed by its own end tag, in order. Returns what is wrong, "" if nothing.
inline std::string unbalanced(const std::string& page) {
  static const std::regex kTag(R"(<(/?)([a-z][a-z0-9]*)((?:"[^"]*"|[^">])*?)(/?)>)");
  std::string text = std::regex_replace(page, std::regex("<(style|script)>[^]*?</(style|script)>"), "");
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
