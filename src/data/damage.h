// Damaged copies of what users name, for fuzz tests: the same for the same seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/random.h"

namespace ingot::data {

// A sequence of numbers that depends on the seed alone.
class Dice {
 public:
  explicit Dice(uint64_t key) : key_(key) {}
  uint64_t below(uint64_t limit) {
    const auto words = base::philox(key_, count_++);
    return (words[0] | static_cast<uint64_t>(words[1]) << 32) % std::max<uint64_t>(limit, 1);
  }

 private:
  uint64_t key_, count_ = 0;
};

inline std::string damaged(std::string bytes, Dice& dice) {
  for (uint64_t change = 0; change <= dice.below(4); ++change) {
    const size_t at = dice.below(bytes.size());
    switch (dice.below(7)) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << dice.below(8)));
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = static_cast<char>(dice.below(256));
        break;
      case 2: bytes.resize(at); break;
      case 3: bytes.insert(at, std::string(1 + dice.below(9), static_cast<char>(dice.below(256)))); break;
      case 4: bytes.erase(at, 1 + dice.below(16)); break;
      case 5: bytes.insert(at, bytes.substr(dice.below(bytes.size() + 1), dice.below(40))); break;
      default:
        for (size_t i = at; i < std::min(at + 8, bytes.size()); ++i) bytes[i] = dice.below(3) == 0 ? '\x7F' : '\xFF';  // a huge number
    }
  }
  return bytes;
}

// Runs `use` on damaged copies; counts those that were still read, so that a test can see that both kinds occurred.
template <class Use>
int survivors(const std::string& valid, int trials, uint64_t seed, const Use& use) {
  int read = 0;
  for (int trial = 0; trial < trials; ++trial) {
    Dice dice(base::stream_key(seed, std::to_string(trial)));
    try {
      use(damaged(valid, dice));
      ++read;
    } catch (const base::Error&) {
    }
  }
  return read;
}

}  // namespace ingot::data
