// For tests: lines of JSON with up to a dozen changed, added, lost or repeated characters.
#pragma once

#include <string>
#include <string_view>

#include "base/random.h"

namespace ingot::report {

/// The same for the same key.
inline std::string mutated_lines(std::string text, uint64_t key) {
  static constexpr std::string_view kSpice = "{}[]\",:\n\\-+.eE0192ntu\xff\x80 ";
  const auto mutations = 1 + static_cast<uint64_t>(base::uniform_at(key, 0) * 12);
  for (uint64_t i = 0; i < mutations && !text.empty(); ++i) {
    const auto place = static_cast<size_t>(base::uniform_at(key, 3 * i + 1) * static_cast<double>(text.size()));
    const double kind = base::uniform_at(key, 3 * i + 2);
    const auto spice = kSpice[static_cast<size_t>(base::uniform_at(key, 3 * i + 3) * static_cast<double>(kSpice.size()))];
    if (kind < 0.5) text[place] = spice;
    else if (kind < 0.7) text.insert(place, 1, spice);
    else if (kind < 0.85) text.erase(place, 1 + place % 40);
    else text.insert(place, text.substr(place / 2, 60));
  }
  return text;
}

}  // namespace ingot::report
