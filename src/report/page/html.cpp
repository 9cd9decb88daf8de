#include "report/page/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace ingot::report {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// Bytes of the UTF-8 character at `i`, or 0 when there is none: overlong forms, surrogates and broken sequences.
size_t character_size(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
  const auto continues = [&](size_t k) { return (byte(k) & 0xc0) == 0x80; };
  const unsigned first = byte(i), second = byte(i + 1);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return continues(i + 1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    const bool bad = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f);
    return !bad && continues(i + 1) && continues(i + 2) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const bool bad = (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
    return !bad && continues(i + 1) && continues(i + 2) && continues(i + 3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const size_t size = character_size(text, i);
    if (size == 0 || (size == 1 && static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
      out += kReplacement;
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += text.substr(i, size);
    }
    i += std::max<size_t>(size, 1);
  }
  return out;
}

std::string shortened(std::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xc0) == 0x80) --limit;
  return std::string(text.substr(0, limit)) + "…";
}

std::string grouped(int64_t value) {
  const auto digits = fmt::format("{}", value < 0 ? -static_cast<uint64_t>(value) : static_cast<uint64_t>(value));
  std::string out = value < 0 ? "-" : "";
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string number(double value) {
  if (!std::isfinite(value)) return "–";
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size < 1e-3 || size >= 1e15) return fmt::format("{:.2e}", value);
  if (size >= 9999.5) return grouped(std::llround(value));
  const int decimals = std::clamp(3 - static_cast<int>(std::floor(std::log10(size))), 0, 6);
  return fmt::format("{:.{}f}", value, decimals);
}

std::string signed_percent(double fraction) {
  if (!std::isfinite(fraction)) return "";
  const double percent = 100 * fraction;
  return fmt::format("{}{:.{}f} %", percent < 0 ? "−" : "+", std::abs(percent), std::abs(percent) < 99.95 ? 1 : 0);
}

}  // namespace ingot::report
