#include "base/random.h"

#include <bit>
#include <cmath>
#include <numbers>

namespace ingot::base {

std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                               static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kMultiplier0 * c[0], p1 = kMultiplier1 * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1), static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1,
         static_cast<uint32_t>(p0)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

uint64_t stream_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, then mixed with the seed by Philox
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  const auto words = philox(seed, hash, name.size());
  return words[0] | static_cast<uint64_t>(words[1]) << 32;
}

namespace {

double to_unit(uint32_t low, uint32_t high) {
  const uint64_t bits = (low | static_cast<uint64_t>(high) << 32) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace

double uniform_at(uint64_t key, uint64_t index) {
  const auto words = philox(key, index);
  return to_unit(words[0], words[1]);
}

double normal_at(uint64_t key, uint64_t index) {
  const auto words = philox(key, index / 2, /*counter_high=*/1);
  const double radius = std::sqrt(-2.0 * std::log(1.0 - to_unit(words[0], words[1])));
  const double angle = 2.0 * std::numbers::pi * to_unit(words[2], words[3]);
  return index % 2 == 0 ? radius * std::cos(angle) : radius * std::sin(angle);
}

uint64_t permute(uint64_t key, uint64_t index, uint64_t size) {
  if (size <= 1) return 0;
  const int bits = (static_cast<int>(std::bit_width(size - 1)) + 1) / 2;  // of one half
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  uint64_t value = index;
  do {
    uint64_t left = value >> bits, right = value & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = left ^ (philox(key, right, round + 2)[0] & mask);
      left = right;
      right = mixed;
    }
    value = left << bits | right;
  } while (value >= size);
  return value;
}

}  // namespace ingot::base
