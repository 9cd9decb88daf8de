#include "data/hugging_face/byte_level.h"

#include <array>

#include "data/utf8.h"

namespace ingot::data {
namespace {

struct Alphabet {
  std::array<std::string, 256> character;  // of a byte
  std::array<int, 0x144> byte{};           // of a code point below U+0144, -1 where there is none

  Alphabet() {
    byte.fill(-1);
    char32_t moved = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
      const char32_t code_point = printable ? static_cast<char32_t>(b) : moved++;
      character[static_cast<size_t>(b)] = to_utf8(code_point);
      byte[code_point] = b;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

std::string bytes_to_byte_level(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  for (const char c : bytes) out += alphabet().character[static_cast<unsigned char>(c)];
  return out;
}

bool append_byte_level(std::string_view token, std::string& bytes) {
  const size_t before = bytes.size();
  while (!token.empty()) {
    const CodePoint c = decode_utf8(token);
    if (!c.valid || c.value >= alphabet().byte.size() || alphabet().byte[c.value] < 0) {
      bytes.resize(before);
      return false;
    }
    bytes += static_cast<char>(alphabet().byte[c.value]);
    token.remove_prefix(static_cast<size_t>(c.length));
  }
  return true;
}

}  // namespace ingot::data
