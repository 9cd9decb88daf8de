// A run's settings as trackers show them: one value for each dotted name.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ingot::train {

using NamedSettings = std::vector<std::pair<std::string, std::string>>;

/// The settings of a document that SettingsTable::dump_toml wrote, by name: {"train.steps", "10"}; elements of lists are numbered.
NamedSettings settings_by_name(const std::string& dumped_toml);

}  // namespace ingot::train
