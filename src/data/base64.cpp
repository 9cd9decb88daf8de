#include "data/base64.h"

#include <cstdint>

namespace ingot::data {
namespace {

int value_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

}  // namespace

std::optional<std::string> bytes_of_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  for (size_t i = 0; i + padding < text.size(); ++i) {
    const int value = value_of(text[i]);
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    if (i % 4 == 3) bytes += {static_cast<char>(bits >> 16), static_cast<char>(bits >> 8), static_cast<char>(bits)};
  }
  // Bits that the padding leaves over are zero in what an encoder writes.
  if ((padding == 1 && (bits & 0x3)) || (padding == 2 && (bits & 0xF))) return std::nullopt;
  if (padding == 1) bytes += {static_cast<char>(bits >> 10), static_cast<char>(bits >> 2)};
  if (padding == 2) bytes += static_cast<char>(bits >> 4);
  return bytes;
}

}  // namespace ingot::data
