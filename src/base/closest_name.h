// For messages that always name something known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ingot::base {

/// The candidate with the smallest edit distance to `name`, however far: nearest_name() (base/text.h) of those that have nothing better to
/// say. "" of no candidates.
std::string closest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace ingot::base
