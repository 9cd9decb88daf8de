#include "base/counts.h"

#include <cctype>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace ingot::base {

int64_t count_from(const std::string& flag, const std::string& text, const std::string& what, int64_t least) {
  constexpr int64_t kMost = int64_t{1} << 48;
  const bool has_unit = !text.empty() && std::string("KMGTkmgt").find(text.back()) != std::string::npos;
  auto number = text;
  if (has_unit) {
    number.back() = static_cast<char>(std::toupper(static_cast<unsigned char>(number.back())));
    number += "iB";
  }
  const auto count = parse_integer(number);
  if (!count) throw UsageError("{} {}: write {}", flag, text, what);
  if (*count < least || *count > kMost)
    throw UsageError("{} {}: write {}; the nearest that is possible is {}", flag, text, what, *count < least ? least : kMost);
  return *count;
}

std::vector<int64_t> counts_from(const std::string& flag, const std::vector<std::string>& texts, const std::string& what, int64_t least) {
  std::vector<int64_t> counts;
  for (const auto& text : texts) counts.push_back(count_from(flag, text, what, least));
  return counts;
}

double quantity_from(const std::string& flag, const std::string& text, double most) {
  if (text.empty()) return 0;
  static const std::string kUnits = "kMBTPE";  // 10^3 to 10^18
  auto number = text;
  double factor = 1;
  const char unit = number.back() == 'K' ? 'k' : number.back() == 'G' ? 'B' : number.back();
  if (const size_t power = kUnits.find(unit); power != std::string::npos) {
    factor = std::pow(1000.0, static_cast<double>(power + 1));
    number.pop_back();
  }
  const auto value = parse_number(number);
  if (!value || !(*value * factor >= 1) || !(*value * factor <= most))
    throw UsageError("{} {}: write a number from 1 to {:g}, such as 760M, 8B, 2T or 1e21", flag, text, most);
  return *value * factor;
}

}  // namespace ingot::base
