#include "health/host_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"

namespace ingot::health {
namespace {

using base::DataError;

constexpr size_t kMostHosts = 65'536;
// Longer numbers stand as text.
constexpr size_t kMostDigits = 15;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

struct Number {
  size_t width = 0;
  uint64_t value = 0;
  auto operator<=>(const Number&) const = default;
};

std::string text_of(const Number& n) { return fmt::format("{:0{}}", n.value, n.width); }

std::string ranges_of(const std::set<Number>& numbers) {
  std::string out;
  for (auto at = numbers.begin(); at != numbers.end();) {
    auto last = at, next = std::next(at);
    while (next != numbers.end() && next->width == last->width && next->value == last->value + 1) last = next++;
    out += (out.empty() ? "" : ",") + text_of(*at) + (last == at ? "" : "-" + text_of(*last));
    at = next;
  }
  return out;
}

uint64_t number_of(std::string_view digits, std::string_view list) {
  if (digits.empty() || digits.size() > kMostDigits || !std::all_of(digits.begin(), digits.end(), is_digit))
    throw DataError("the host list {} has '{}' in brackets where a number should be", list.substr(0, 200), digits.substr(0, 40));
  uint64_t value = 0;
  for (const char c : digits) value = 10 * value + static_cast<uint64_t>(c - '0');
  return value;
}

// "001-003" behind each of the beginnings.
void add_range(std::string_view range, const std::string& before, std::string_view list, std::vector<std::string>& out) {
  const auto dash = range.find('-');
  const auto first = range.substr(0, dash), last = dash == std::string_view::npos ? first : range.substr(dash + 1);
  const uint64_t low = number_of(first, list), high = number_of(last, list);
  if (high < low) throw DataError("the host list {} has a range that falls: {}", list.substr(0, 200), range);
  if (high - low >= kMostHosts) throw DataError("the host list {} has more than {} names", list.substr(0, 200), kMostHosts);
  for (uint64_t value = low; value <= high; ++value) out.push_back(before + text_of({first.size(), value}));
}

std::vector<std::string> expanded_entry(std::string_view entry, std::string_view list) {
  std::vector<std::string> names = {""};
  while (!entry.empty()) {
    const auto open = entry.find('[');
    const auto plain = entry.substr(0, open);
    if (plain.find(']') != std::string_view::npos) throw DataError("the host list {} has a ] without its [", list.substr(0, 200));
    for (auto& name : names) name += plain;
    if (open == std::string_view::npos) break;
    const auto close = entry.find(']', open);
    if (close == std::string_view::npos) throw DataError("the host list {} has a [ that does not close", list.substr(0, 200));
    std::vector<std::string> longer;
    for (const auto& name : names) {
      for (auto inner = entry.substr(open + 1, close - open - 1);;) {
        const auto comma = inner.find(',');
        add_range(inner.substr(0, comma), name, list, longer);
        if (longer.size() > kMostHosts) throw DataError("the host list {} has more than {} names", list.substr(0, 200), kMostHosts);
        if (comma == std::string_view::npos) break;
        inner.remove_prefix(comma + 1);
      }
    }
    names = std::move(longer);
    entry.remove_prefix(close + 1);
  }
  return names;
}

}  // namespace

std::string compressed_hosts(std::vector<std::string> hosts) {
  std::map<std::string, std::set<Number>> numbered;
  std::set<std::string> plain;
  for (const auto& host : hosts) {
    size_t digits = 0;
    while (digits < host.size() && digits < kMostDigits && is_digit(host[host.size() - digits - 1])) ++digits;
    const auto before = host.substr(0, host.size() - digits);
    if (digits == 0 || before.empty()) plain.insert(host);
    else numbered[before].insert({digits, std::stoull(host.substr(before.size()))});
  }
  std::vector<std::string> parts(plain.begin(), plain.end());
  for (const auto& [before, numbers] : numbered)
    parts.push_back(numbers.size() == 1 ? before + text_of(*numbers.begin()) : before + "[" + ranges_of(numbers) + "]");
  std::sort(parts.begin(), parts.end());
  return fmt::format("{}", fmt::join(parts, ","));
}

std::vector<std::string> expanded_hosts(std::string_view list) {
  std::vector<std::string> out;
  size_t from = 0, depth = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    const char c = i < list.size() ? list[i] : ',';
    if (c == '[') ++depth;
    if (c == ']' && depth > 0) --depth;
    if (i < list.size() && (c != ',' || depth > 0)) continue;
    if (i > from) {
      const auto names = expanded_entry(list.substr(from, i - from), list);
      out.insert(out.end(), names.begin(), names.end());
    }
    if (out.size() > kMostHosts) throw DataError("the host list {} has more than {} names", list.substr(0, 200), kMostHosts);
    from = i + 1;
  }
  return out;
}

std::vector<std::string> parse_host_file(std::string_view text) {
  std::string list;
  bool is_remark = false;
  for (const char c : text) {
    if (c == '#') is_remark = true;
    if (c == '\n') is_remark = false;
    const bool parts = c == ' ' || c == '\t' || c == '\r' || c == '\n';
    if (!is_remark) list += parts ? ',' : c;
  }
  return expanded_hosts(list);
}

void write_hosts(const std::filesystem::path& path, const std::vector<std::string>& hosts, bool for_slurm) {
  std::string text = for_slurm ? compressed_hosts(hosts) + "\n" : "";
  if (!for_slurm)
    for (const auto& host : hosts) text += host + "\n";
  base::write_file_atomically(path, text);
  base::log_info("wrote {} ({} host{})", path.string(), hosts.size(), hosts.size() == 1 ? "" : "s");
}

}  // namespace ingot::health
