#include "train/metrics/settings_by_name.h"

#include <cstdint>
#include <map>
#include <sstream>

namespace ingot::train {

NamedSettings settings_by_name(const std::string& dumped_toml) {
  NamedSettings settings;
  std::map<std::string, int64_t> elements;  // of each list, so far
  std::string group;
  std::istringstream lines(dumped_toml);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("[[")) {
      const auto list = line.substr(2, line.find(']') - 2);
      group = list + "." + std::to_string(elements[list]++) + ".";
    } else if (line.starts_with('[')) {
      group = line.substr(1, line.find(']') - 1) + ".";
    } else if (const size_t equals = line.find(" = "); equals != std::string::npos && !line.starts_with('#')) {
      auto value = line.substr(equals + 3);
      if (value.size() >= 2 && value.front() == '"' && value.back() == '"') value = value.substr(1, value.size() - 2);
      settings.emplace_back(group + line.substr(0, equals), value);
    }
  }
  return settings;
}

}  // namespace ingot::train
