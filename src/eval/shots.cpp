#include "eval/shots.h"

#include <bit>
#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"

namespace ingot::eval {

PythonRandom::PythonRandom(uint64_t seed) {
  const auto size = static_cast<uint32_t>(state_.size());
  state_[0] = 19650218;
  for (uint32_t i = 1; i < size; ++i) state_[i] = 1812433253u * (state_[i - 1] ^ state_[i - 1] >> 30) + i;
  std::vector<uint32_t> key = {static_cast<uint32_t>(seed)};
  if (seed >> 32) key.push_back(static_cast<uint32_t>(seed >> 32));
  uint32_t i = 1, j = 0;
  const auto step = [&] {
    if (++i < size) return;
    state_[0] = state_[size - 1];
    i = 1;
  };
  for (uint32_t n = 0; n < size; ++n) {
    state_[i] = (state_[i] ^ (state_[i - 1] ^ state_[i - 1] >> 30) * 1664525u) + key[j] + j;
    step();
    j = (j + 1) % static_cast<uint32_t>(key.size());
  }
  for (uint32_t n = 1; n < size; ++n) {
    state_[i] = (state_[i] ^ (state_[i - 1] ^ state_[i - 1] >> 30) * 1566083941u) - i;
    step();
  }
  state_[0] = 0x80000000u;
}

void PythonRandom::refill() {
  const size_t size = state_.size();
  for (size_t i = 0; i < size; ++i) {
    const uint32_t y = (state_[i] & 0x80000000u) | (state_[(i + 1) % size] & 0x7fffffffu);
    state_[i] = state_[(i + 397) % size] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
  }
  next_ = 0;
}

uint32_t PythonRandom::word() {
  if (next_ == state_.size()) refill();
  uint32_t y = state_[next_++];
  y ^= y >> 11;
  y ^= y << 7 & 0x9d2c5680u;
  y ^= y << 15 & 0xefc60000u;
  return y ^ y >> 18;
}

size_t PythonRandom::below(size_t size) {
  const int bits = std::bit_width(size);
  for (;;)
    if (const size_t drawn = word() >> (32 - bits); drawn < size) return drawn;
}

std::vector<size_t> PythonRandom::sample(size_t size, size_t count) {
  // Python keeps a list of what is left where that is smaller than a set of what was taken.
  size_t set_size = 21;
  if (count > 5) set_size += size_t{1} << 2 * static_cast<size_t>(std::ceil(std::log(static_cast<double>(count) * 3) / std::log(4.0)));
  std::vector<size_t> drawn;
  if (size <= set_size) {
    std::vector<size_t> left(size);
    std::iota(left.begin(), left.end(), size_t{0});
    for (size_t i = 0; i < count; ++i) {
      const size_t at = below(size - i);
      drawn.push_back(left[at]);
      left[at] = left[size - i - 1];
    }
    return drawn;
  }
  std::set<size_t> taken;
  while (drawn.size() < count)
    if (const size_t one = below(size); taken.insert(one).second) drawn.push_back(one);
  return drawn;
}

Shots::Shots(const std::vector<Row>& pool, int64_t count, bool takes_first, uint64_t seed)
    : pool_(pool), count_(static_cast<size_t>(count)), takes_first_(takes_first), random_(seed) {
  if (pool.size() >= (size_t{1} << 31)) throw base::ConfigError("{} rows to draw examples from are too many", pool.size());
}

std::vector<const Row*> Shots::next(const Row& question, bool may_be_in_pool) {
  std::vector<const Row*> chosen;
  if (count_ == 0) return chosen;
  const auto take = [&](const Row& row) {
    if (chosen.size() < count_ && !(may_be_in_pool && row.fields == question.fields)) chosen.push_back(&row);
  };
  const size_t wanted = count_ + (may_be_in_pool ? 1 : 0);
  if (takes_first_) {
    for (const auto& row : pool_) take(row);
  } else if (wanted <= pool_.size()) {
    for (const size_t i : random_.sample(pool_.size(), wanted)) take(pool_[i]);
  }
  if (chosen.size() < count_ && !takes_first_) {  // rows that are there twice
    std::vector<const Row*> others;
    for (const auto& row : pool_)
      if (row.fields != question.fields) others.push_back(&row);
    chosen.clear();
    if (others.size() >= count_)
      for (const size_t i : random_.sample(others.size(), count_)) chosen.push_back(others[i]);
  }
  if (chosen.size() < count_)
    throw base::ConfigError("{}: {} examples are wanted of {} rows besides the question; lower shots, or name more in shots_from",
                            question.where, count_, pool_.size() - (may_be_in_pool ? 1 : 0));
  return chosen;
}

}  // namespace ingot::eval
