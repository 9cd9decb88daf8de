#include "base/random.h"

#include <bit>

#include "base/random_functions.h"

namespace ingot::base {

std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  const auto words = philox_words(key, counter_low, counter_high);
  return {words.at[0], words.at[1], words.at[2], words.at[3]};
}

uint64_t stream_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, then mixed with the seed by Philox
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  const auto words = philox(seed, hash, name.size());
  return words[0] | static_cast<uint64_t>(words[1]) << 32;
}

double uniform_at(uint64_t key, uint64_t index) {
  const auto words = philox(key, index);
  return to_unit(words[0], words[1]);
}

double normal_at(uint64_t key, uint64_t index) {
  const auto pair = normal_pair(key, index / 2);
  return index % 2 == 0 ? pair.even : pair.odd;
}

void normals_at(uint64_t key, uint64_t first, std::span<double> out) {
  size_t i = 0;
  if (first % 2 == 1 && !out.empty()) out[i++] = normal_pair(key, first / 2).odd;
  for (; i + 1 < out.size(); i += 2) {
    const auto pair = normal_pair(key, (first + i) / 2);
    out[i] = pair.even;
    out[i + 1] = pair.odd;
  }
  if (i < out.size()) out[i] = normal_pair(key, (first + i) / 2).even;
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
