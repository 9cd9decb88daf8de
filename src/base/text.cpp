#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <numeric>

#include "base/closest_name.h"

namespace ingot::base {
namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// The multiplier of a size suffix, or 0 if the suffix is not one.
double suffix_factor(std::string_view suffix) {
  if (suffix.empty() || suffix == "B") return 1;
  static constexpr std::string_view kLetters = "KMGT";
  const size_t power = kLetters.find(static_cast<char>(std::toupper(static_cast<unsigned char>(suffix[0])))) + 1;
  if (power == 0) return 0;
  if (suffix.size() == 1) return std::pow(1000.0, static_cast<double>(power));
  if (suffix.substr(1) == "i" || suffix.substr(1) == "iB") return std::pow(1024.0, static_cast<double>(power));
  return suffix.substr(1) == "B" ? std::pow(1000.0, static_cast<double>(power)) : 0;
}

}  // namespace

std::string closest_name(std::string_view name, const std::vector<std::string>& candidates) {
  const auto closer = [&](const auto& a, const auto& b) { return edit_distance(name, a) < edit_distance(name, b); };
  const auto best = std::min_element(candidates.begin(), candidates.end(), closer);
  return best == candidates.end() ? "" : *best;
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  const auto best = closest_name(name, candidates);
  return edit_distance(name, best) <= std::max<size_t>(2, name.size() / 3) ? best : "";
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const auto nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string format_bytes(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  const double size = std::abs(value);
  if (size >= 0x1p40) return fmt::format("{:.2f} TiB", value / 0x1p40);
  if (size >= 0x1p30) return fmt::format("{:.2f} GiB", value / 0x1p30);
  if (size >= 0x1p20) return fmt::format("{:.1f} MiB", value / 0x1p20);
  if (size >= 0x1p10) return fmt::format("{:.1f} KiB", value / 0x1p10);
  return fmt::format("{} B", bytes);
}

std::string format_count(double count) {
  static constexpr const char* kUnits[] = {"", " k", " M", " G", " T", " P", " E"};
  size_t unit = 0;
  while (std::abs(count) >= 999.5 && unit + 1 < std::size(kUnits)) {
    count /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.4g}", count) : fmt::format("{:.3g}{}", count, kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 0.1) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{} min {:02d} s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{} h {:02d} min", whole / 3600, whole / 60 % 60);
  return fmt::format("{} d {:02d} h", whole / 86400, whole / 3600 % 24);
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  const double factor = suffix_factor(text.substr(static_cast<size_t>(end - text.data())));
  if (factor == 0) return std::nullopt;
  return value * factor;
}

std::optional<int64_t> parse_integer(std::string_view text) {
  const auto value = parse_number(text);
  if (!value || !(std::abs(*value) < 0x1p62) || *value != std::floor(*value)) return std::nullopt;
  return static_cast<int64_t>(*value);
}

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace ingot::base
