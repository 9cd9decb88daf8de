// Which examples a question gets, drawn as lm-evaluation-harness draws them: the same seed gives the same examples.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "eval/row.h"

namespace ingot::eval {

/// Python's random.Random(seed): MT19937 (Matsumoto and Nishimura, "Mersenne Twister", TOMACS 8, 1998), filled from an array of 32-bit
/// words.
class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);
  uint32_t word();
  /// From [0, size).
  size_t below(size_t size);
  /// random.sample(range(size), count).
  std::vector<size_t> sample(size_t size, size_t count);

 private:
  void refill();
  std::array<uint32_t, 624> state_;
  size_t next_ = 624;
};

/// Hands out examples, question after question.
class Shots {
 public:
  /// `pool` must outlive it. Throws ConfigError where it has too few.
  Shots(const std::vector<Row>& pool, int64_t count, bool takes_first, uint64_t seed);
  /// Those of the next question; never the question itself if it `may_be_in_pool`.
  std::vector<const Row*> next(const Row& question, bool may_be_in_pool);

 private:
  const std::vector<Row>& pool_;
  size_t count_;
  bool takes_first_;
  PythonRandom random_;
};

}  // namespace ingot::eval
