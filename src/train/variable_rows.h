// Rows of data.rows = "variable" (data::Batch::row_begins) as microbatches: runs of whole rows of at most so many tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "train/config.h"
#include "train/microbatch.h"

namespace ingot::train {

/// Where the runs begin among the tokens, and the end of all. `row_begins`: of each row, and the end; each of at most `most_tokens`. As few
/// runs as that takes, or `parts` of them, which are no fewer than that and no more than rows.
std::vector<int64_t> cut_rows(const std::vector<int64_t>& row_begins, int64_t most_tokens, int64_t parts = 0);

/// Of x [rows, tokens], or without padding [1, tokens]: the sum of each row, on its device.
at::Tensor sums_of_rows(const at::Tensor& x, const std::vector<int64_t>& row_begins, at::ScalarType dtype);

/// Tokens [begin, end) of all, which begin and end with rows.
Microbatch tokens_of(const Microbatch& all, int64_t begin, int64_t end);

/// Throws ConfigError naming the setting that needs rows of one length.
void check_variable_rows(const RunConfig& config);

}  // namespace ingot::train
