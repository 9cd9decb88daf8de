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

#include "data/loader.h"

namespace ingot::bench {

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

/// How the loader's samples lie over pages.
struct ReadPattern {
  int64_t samples = 0;     // looked at
  double pages = 0;        // distinct pages that a sample touches, mean
  double pieces = 0;       // contiguous runs that it is read in, mean
  int64_t most_pages = 0;  // of one sample
  double extra_pages = 0;  // m: pages beyond s b / P
  double scatter = 1;      // sigma by m
};

/// Of `count` samples of the loader's shuffled order. A page counts once for a sample, however many of its documents lie on it, and
/// again for each other sample: in a large dataset those are far apart in time.
ReadPattern read_pattern(const data::Loader& loader, int64_t first_sample, int64_t count, int64_t page_bytes);

/// Writes a dataset of about `tokens` tokens whose documents have lengths of an exponential distribution with mean `document_tokens`, as
/// text corpora roughly have: for counting reads where the real one is not available. All ids are below `vocab_size`.
void write_simulated_dataset(const data::fs::path& prefix, int64_t tokens, int64_t document_tokens, int64_t vocab_size);

}  // namespace ingot::bench
