#include "health/exclusion_list.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/files.h"
#include "health/host_list.h"

namespace ingot::health {

constexpr int64_t kLongestList = 16 << 20;  // bytes

bool is_excluded(const std::filesystem::path& list, const std::string& node) {
  std::error_code none;
  if (!std::filesystem::exists(list, none)) return false;
  const auto nodes = parse_host_file(base::read_file(list, kLongestList));
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

void exclude(const std::filesystem::path& list, const std::string& node, const std::string& why) {
  if (is_excluded(list, node)) return;
  auto on_one_line = why;
  std::replace_if(
      on_one_line.begin(), on_one_line.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  if (list.has_parent_path()) base::make_directories(list.parent_path());
  base::append_line(list, fmt::format("{}  # {:%Y-%m-%dT%H:%M:%SZ}: {}", node, now, on_one_line));
}

}  // namespace ingot::health
