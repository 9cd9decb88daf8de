// Results that one plot compares: those of one layer, pass, batch and number of ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "report/parallel/reader.h"

namespace ingot::report {

struct ParallelGroup {
  std::string layer, pass;
  int ranks = 1;
  int64_t batch = 1;
  std::vector<size_t> methods;                                            // numbers on the page, which choose the colours; ascending
  std::vector<int64_t> seqs;                                              // ascending
  std::map<std::pair<size_t, int64_t>, const schedule::Result*> results;  // by method and sequence; of the file, which must outlive this

  /// nullptr where the method has none.
  const schedule::Result* find(size_t method, int64_t seq) const;
};

/// The methods of all files in the order in which they come: a method's place is its number.
std::vector<std::string> method_names(const std::vector<ParallelFile>& files);

/// In the order in which the file has them. `names` from method_names().
std::vector<ParallelGroup> groups_of(const ParallelFile& file, const std::vector<std::string>& names);

/// "32K", "40.5K", "1M", "1,000".
std::string tokens_text(int64_t tokens);
/// "forward and backward" for both.
std::string pass_text(const std::string& pass);

}  // namespace ingot::report
