// Whether storage keeps up with training: the page reads that an iteration of a shuffled dataset asks for, by how far its reads are from
// contiguous (the scatter factor), and the iteration time below which they would be the limit.
//
// With G sequences an iteration of s tokens of b bytes, pages of P bytes, an iteration time t, I_max page reads a second that the storage
// sustains, and the scatter factor sigma >= 1 (ZAYA1, arXiv 2511.17127, appendix on storage):
//
//   pages       = sigma G s b / P          page reads of an iteration
//   I           = pages / t                page reads a second that it asks for
//   t_break     = pages / I_max            iteration time at which storage is the limit
//   sigma       = 1 + m P / (s b)          of m page reads a sample beyond the s b / P that its bytes fill
#pragma once

#include <cstdint>

namespace ingot::plan {

struct LoadingShape {
  int64_t batch = 0, seq = 0, token_bytes = 0;  // G, s, b
  int64_t page_bytes = 4096;                    // P

  double bytes_of_sample() const { return static_cast<double>(seq) * static_cast<double>(token_bytes); }
  /// s b / P: not a whole number when a sample ends within a page.
  double pages_of_sample() const { return bytes_of_sample() / static_cast<double>(page_bytes); }
};

double pages_per_iteration(const LoadingShape& shape, double scatter);
double required_reads_per_s(const LoadingShape& shape, double scatter, double iteration_s);
double break_even_s(const LoadingShape& shape, double scatter, double reads_per_s);
double scatter_of(const LoadingShape& shape, double extra_pages);

}  // namespace ingot::plan
