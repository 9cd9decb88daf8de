// Random numbers as pure functions of (key, counter): no state to save, the same on every layout, thread count and device.
// The generator is Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace ingot::base {

/// Four independent 32-bit words for one 64-bit key and one 128-bit counter (given as two halves).
std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low, uint64_t counter_high = 0);

/// The key of a named stream: equal for equal (seed, name), unrelated otherwise.
uint64_t stream_key(uint64_t seed, std::string_view name);

/// Uniform in [0, 1) with 53 random bits; element `index` of the stream.
double uniform_at(uint64_t key, uint64_t index);

/// Standard normal; element `index` of the stream. Box-Muller on pairs (index / 2), evaluated in double; the same bits on every machine
/// (random_functions.h).
double normal_at(uint64_t key, uint64_t index);

/// Fills `out` with the elements from `first` on, at half the price of one by one.
void normals_at(uint64_t key, uint64_t first, std::span<double> out);

/// A pseudo-random permutation of [0, size) evaluated at one point, without a table: a four-round Feistel network over the
/// next even power of two, walked until it falls inside (cycle walking). `index` must be in [0, size).
uint64_t permute(uint64_t key, uint64_t index, uint64_t size);

}  // namespace ingot::base
