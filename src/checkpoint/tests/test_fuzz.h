// Bytes that no writer wrote, for tests of what reads bytes: it gives values or throws its documented error, and memory stays a small
// multiple of what it was given. The same at each run; more at night.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/tests/test_support.h"

namespace ingot::checkpoint {

/// The largest memory that was in use at once since `reset`, above what was in use then. 0 where it is not counted.
struct MemoryPeak {
  static void reset();
  static int64_t bytes();
};

/// Valid inputs with one to four changes: bits, bytes, cuts, what is left out, put in or repeated, the head of one before the tail of
/// another, and counts as large as can be. One in sixteen is random from the first byte to the last.
class Mutator {
 public:
  Mutator(std::vector<std::string> valid, uint64_t seed) : valid_(std::move(valid)), random_(seed) {}
  std::string next() {
    if (below(16) == 0) return noise(below(200));
    std::string bytes = one();
    for (size_t changes = 1 + below(4); changes > 0; --changes) change(bytes);
    return bytes;
  }

 private:
  size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }
  const std::string& one() { return valid_[below(valid_.size())]; }
  std::string noise(size_t size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }
  void change(std::string& bytes) {
    static const std::string kHuge[] = {"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
                                        "\xff\xff\xff\xff\x0f",
                                        std::string("\xff\xff\xff\xff\xff\xff\xff\x7f"),
                                        std::string("\xff\xff\xff\xff"),
                                        std::string("\x80\x80\x80\x80\x80\x80\x80\x80\x40"),
                                        std::string("\0\0\0\x40", 4)};
    const size_t at = below(bytes.size() + 1), size = 1 + below(12);
    switch (below(8)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random_());
        break;
      case 2: bytes.resize(at); break;
      case 3: bytes.erase(at, size); break;
      case 4: bytes.insert(at, noise(size)); break;
      case 5: bytes.insert(at, bytes.substr(below(bytes.size() + 1), below(60))); break;
      case 6: {
        const auto& other = one();
        bytes = bytes.substr(0, at) + other.substr(below(other.size() + 1));
        break;
      }
      default: bytes.replace(at, below(2) * size, kHuge[below(std::size(kHuge))]);
    }
  }
  std::vector<std::string> valid_;
  std::mt19937_64 random_;
};

struct Fuzzed {
  int read = 0, refused = 0;
};

/// Calls `use` with `rounds` mutations (twenty times as many at night). What it throws must be an Error, and memory must stay within 1 MiB
/// and `memory_factor` times the size of the input.
template <class Error, class Use>
Fuzzed fuzz(std::vector<std::string> valid, int rounds, int64_t memory_factor, const Use& use) {
  for (const auto& one : valid) use(one);
  Mutator mutator(std::move(valid), 20261122);
  Fuzzed result;
  for (int round = base::tests_run_at_night() ? 20 * rounds : rounds; round > 0; --round) {
    const std::string bytes = mutator.next();
    MemoryPeak::reset();
    try {
      use(bytes);
      ++result.read;
    } catch (const Error&) {
      ++result.refused;
    } catch (const std::exception& other) {
      ADD_FAILURE() << "another error: " << other.what() << "\nfor " << ::testing::PrintToString(bytes);
    }
    EXPECT_LE(MemoryPeak::bytes(), (int64_t{1} << 20) + memory_factor * static_cast<int64_t>(bytes.size()))
        << ::testing::PrintToString(bytes);
    if (::testing::Test::HasFailure()) break;
  }
  return result;
}

}  // namespace ingot::checkpoint
