// Lengths of documents, counted in a table whose size does not depend on how many there are.
#pragma once

#include <cstdint>
#include <vector>

namespace ingot::data {

class LengthCounts {
 public:
  void add(int64_t tokens);

  int64_t documents() const { return documents_; }
  int64_t empty() const { return empty_; }
  int64_t shortest() const { return shortest_; }
  int64_t longest() const { return longest_; }

  /// The shortest length that at least a share `share` of the documents does not exceed: exact up to 1,024 tokens, beyond that at most 0.2
  /// % too large.
  int64_t quantile(double share) const;

  struct Bin {
    int64_t from = 0, to = 0;  // tokens, inclusive
    int64_t documents = 0, tokens = 0;
  };
  /// From 1 token to the longest, two bins to each power of two, equally wide on a logarithmic axis; empty documents are in none.
  std::vector<Bin> bins() const;

 private:
  struct Cell {
    int64_t documents = 0, tokens = 0;
  };
  std::vector<Cell> cells_;  // of one length each, then of ever more
  int64_t documents_ = 0, empty_ = 0, shortest_ = 0, longest_ = 0;
};

}  // namespace ingot::data
