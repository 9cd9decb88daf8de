// How the samples of a dataset lie over pages, and made-up datasets to count that on; plan/run/loading.h has what follows for training.
#pragma once

#include <cstdint>

#include "data/loader.h"
#include "plan/run/loading.h"

namespace ingot::bench {

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
