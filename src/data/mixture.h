// Which source gives sample i: a pure function of i that keeps the shares of all sources exact at every moment.
//
// The sources are leaves of a binary tree; a node that has had n samples has given round(n · share of its left side) of them
// to the left, in integers, so that every count is monotone and known without replaying the past. The number of samples of a
// source after n samples differs from n · share by less than 1 for up to four sources and by less than 1.5 for more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ingot::data {

class Mixture {
 public:
  /// Weights need no particular sum; a source of weight 0 is never picked. Throws ConfigError when none is positive.
  explicit Mixture(const std::vector<double>& weights);

  struct Pick {
    size_t source = 0;
    int64_t index = 0;  // how many samples of that source came before
  };
  /// The source of sample `sample` >= 0. O(log sources).
  Pick at(int64_t sample) const;
  /// Samples of each source among the first `samples`.
  std::vector<int64_t> counts(int64_t samples) const;

 private:
  struct Node {
    double weight = 0;
    uint64_t left_share = 0;        // of 2^32
    int32_t left = -1, right = -1;  // -1: a leaf
    size_t source = 0;
  };
  static int64_t left_count(const Node& node, int64_t samples);
  void count(int32_t node, int64_t samples, std::vector<int64_t>& counts) const;

  std::vector<Node> nodes_;
  size_t sources_ = 0;
  int32_t root_ = 0;
};

}  // namespace ingot::data
