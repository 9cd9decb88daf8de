#include "data/statistics/lengths.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace ingot::data {
namespace {

constexpr int kExactBits = 10;  // lengths below 2^10 have cells of their own
constexpr int64_t kExact = int64_t{1} << kExactBits, kCellsPerOctave = kExact / 2;

int octave_of(int64_t tokens) { return std::bit_width(static_cast<uint64_t>(tokens)) - 1; }

size_t cell_of(int64_t tokens) {
  if (tokens < kExact) return static_cast<size_t>(tokens);
  const int shift = octave_of(tokens) - (kExactBits - 1);
  return static_cast<size_t>(kCellsPerOctave * shift + (tokens >> shift));
}

int64_t last_of_cell(size_t cell) {
  const auto number = static_cast<int64_t>(cell);
  if (number < kExact) return number;
  const auto shift = number / kCellsPerOctave - 1;
  return ((number - kCellsPerOctave * shift + 1) << shift) - 1;
}

// Where the second half of an octave begins: at 181/128 of its first length, the square root of two, which is where a cell begins.
int64_t middle_of(int octave) { return (int64_t{1} << octave) + ((int64_t{53} << octave) + 127) / 128; }

size_t bin_of(int64_t tokens) {
  const int octave = octave_of(tokens);
  return octave == 0 ? 0 : static_cast<size_t>(2 * octave - (tokens < middle_of(octave) ? 1 : 0));
}

int64_t first_of_bin(size_t bin) {
  const auto octave = static_cast<int>((bin + 1) / 2);
  return bin == 0 || bin % 2 == 1 ? int64_t{1} << octave : middle_of(octave);
}

}  // namespace

void LengthCounts::add(int64_t tokens) {
  const size_t cell = cell_of(tokens);
  if (cell >= cells_.size()) cells_.resize(cell + 1);
  ++cells_[cell].documents;
  cells_[cell].tokens += tokens;
  shortest_ = documents_ == 0 ? tokens : std::min(shortest_, tokens);
  longest_ = std::max(longest_, tokens);
  empty_ += tokens == 0 ? 1 : 0;
  ++documents_;
}

int64_t LengthCounts::quantile(double share) const {
  const auto wanted = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(share * static_cast<double>(documents_) - 1e-9)));
  int64_t seen = 0;
  for (size_t cell = 0; cell < cells_.size(); ++cell) {
    seen += cells_[cell].documents;
    if (seen >= wanted) return std::min(last_of_cell(cell), longest_);
  }
  return 0;
}

std::vector<LengthCounts::Bin> LengthCounts::bins() const {
  std::vector<Bin> bins;
  if (longest_ == 0) return bins;
  for (size_t bin = 0; bin <= bin_of(longest_); ++bin) bins.push_back({first_of_bin(bin), first_of_bin(bin + 1) - 1});
  for (size_t cell = 1; cell < cells_.size(); ++cell) {
    auto& bin = bins[std::min(bin_of(last_of_cell(cell)), bins.size() - 1)];
    bin.documents += cells_[cell].documents;
    bin.tokens += cells_[cell].tokens;
  }
  return bins;
}

}  // namespace ingot::data
