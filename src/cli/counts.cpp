#include "cli/counts.h"

#include <cctype>

#include "base/error.h"
#include "base/text.h"

namespace ingot::cli {

int64_t count_from(const std::string& flag, const std::string& text, const std::string& what, int64_t least) {
  constexpr int64_t kMost = int64_t{1} << 48;
  const bool has_unit = !text.empty() && std::string("KMGTkmgt").find(text.back()) != std::string::npos;
  auto number = text;
  if (has_unit) {
    number.back() = static_cast<char>(std::toupper(static_cast<unsigned char>(number.back())));
    number += "iB";
  }
  const auto count = base::parse_integer(number);
  if (!count) throw base::UsageError("{} {}: write {}", flag, text, what);
  if (*count < least || *count > kMost)
    throw base::UsageError("{} {}: write {}; the nearest that is possible is {}", flag, text, what, *count < least ? least : kMost);
  return *count;
}

std::vector<int64_t> counts_from(const std::string& flag, const std::vector<std::string>& texts, const std::string& what, int64_t least) {
  std::vector<int64_t> counts;
  for (const auto& text : texts) counts.push_back(count_from(flag, text, what, least));
  return counts;
}

}  // namespace ingot::cli
