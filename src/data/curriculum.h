// Easy rows first: the order of a source's first epoch, in which sample j is drawn from the easiest rows alone, whose share grows from
// `start` to 1 (competence-based curriculum: Platanios et al., arXiv 1903.09848, eq. 6 and 7; in Megatron-DeepSpeed fixed_linear and
// fixed_root). Each row comes once. The order is a pure function of (settings, j), with a table of the rows by their difficulty: up to
// kMostUnits numbers, each of a row, or of as many neighbouring rows as that takes, which then have one difficulty.
//
// The pool grows in kStretches stretches. A stretch takes from what each stretch before has added, and from its own, in proportion to what
// is left there; how many are whole numbers of a small table, which of them keyed permutations.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/config.h"
#include "data/indexed_dataset.h"
#include "data/packing.h"

namespace ingot::data {

class Curriculum {
 public:
  static constexpr int64_t kMostUnits = int64_t{1} << 22, kStretches = 100;

  struct Options {
    uint64_t seed = 0;
    int64_t source = 0;   // its number
    double start = 0.1;   // share of the rows
    int64_t samples = 0;  // at which the share is 1; 0, or more than rows = rows
    bool by_root = false;
  };
  /// Rows of one unit, of which the last may have fewer, and the difficulty of each unit.
  Curriculum(int64_t rows, int64_t unit_rows, const std::vector<double>& difficulty, const Options& options);

  /// Of sample [0, rows).
  int64_t row_of(int64_t sample) const;
  /// Rows from which the sample is drawn: the easiest.
  int64_t pool_at(int64_t sample) const;
  /// Settings and a hash of the order, for those who must know whether they are the same.
  const std::string& description() const { return description_; }

 private:
  size_t stretch_of(int64_t sample) const;
  int64_t row_of_rank(int64_t rank) const;

  int64_t rows_ = 0, unit_rows_ = 1;
  std::vector<uint32_t> units_;  // from the easiest to the hardest; one that is not full is the last
  // Of each stretch; of their borders one more.
  std::vector<int64_t> begins_, pools_;
  std::vector<std::vector<int64_t>> before_;  // [stretches + 1][stretches]: taken of what each stretch added, before a stretch
  std::vector<uint64_t> keys_, pool_keys_;
  std::string description_;
};

/// Of rows of a packing: the mean over tokens of their document's length in the row, or of its score. Null for curriculum = "none". Throws
/// DataError "FILE:LINE: …" for a file that does not hold a finite number for each document.
std::shared_ptr<const Curriculum> make_curriculum(const DataSource& source, const IndexedDataset& dataset, const Packing& packing,
                                                  uint64_t seed, int64_t number);

}  // namespace ingot::data
