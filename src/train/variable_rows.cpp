#include "train/variable_rows.h"

#include <algorithm>

#include "base/error.h"

namespace ingot::train {

std::vector<int64_t> cut_rows(const std::vector<int64_t>& row_begins, int64_t most_tokens, int64_t parts) {
  std::vector<int64_t> begins{0};
  const auto rows = static_cast<int64_t>(row_begins.size()) - 1;
  for (int64_t row = 1; row < rows; ++row) {
    const auto at = static_cast<size_t>(row);
    const int64_t still_to_begin = parts - static_cast<int64_t>(begins.size());
    if (row_begins[at + 1] - begins.back() > most_tokens || still_to_begin >= rows - row) begins.push_back(row_begins[at]);
  }
  begins.push_back(row_begins.back());
  return begins;
}

at::Tensor sums_of_rows(const at::Tensor& x, const std::vector<int64_t>& row_begins, at::ScalarType dtype) {
  if (row_begins.empty()) return x.sum(at::IntArrayRef{1}, /*keepdim=*/false, dtype);
  std::vector<at::Tensor> sums;
  for (size_t row = 0; row + 1 < row_begins.size(); ++row)
    sums.push_back(x.narrow(1, row_begins[row], row_begins[row + 1] - row_begins[row]).sum(dtype));
  return at::stack(sums);
}

Microbatch tokens_of(const Microbatch& all, int64_t begin, int64_t end) {
  const auto part = [&](const at::Tensor& x) { return x.defined() ? x.narrow(1, begin, end - begin) : x; };
  const auto parts = [&](const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> result;
    for (const auto& tensor : tensors) result.push_back(part(tensor));
    return result;
  };
  return {.ids = part(all.ids),
          .targets = part(all.targets),
          .further_ids = parts(all.further_ids),
          .further_targets = parts(all.further_targets),
          .document_start = all.document_start.defined() ? part(all.document_start) - begin : at::Tensor(),
          .losses = part(all.losses),
          .pairs = {.sign = part(all.pairs.sign),
                    .first = all.pairs.first.defined() ? (part(all.pairs.first) - begin).clamp_min(0) : at::Tensor(),
                    .reference = part(all.pairs.reference)},
          .most_of_row = all.most_of_row};
}

void check_variable_rows(const RunConfig& config) {
  if (config.data.rows != "variable") return;
  const auto refuse = [](bool is_set, const char* setting, const char* why, const char* instead) {
    if (is_set)
      throw base::ConfigError("data.rows = \"variable\" does not go with {}: {}; set {}, or data.rows = \"fixed\"", setting, why, instead);
  };
  const auto& parallel = config.parallel;
  refuse(parallel.pipeline > 1, "parallel.pipeline", "stages send activations of one size", "it to 1");
  refuse(parallel.context > 1, "parallel.context", "it cuts rows into equal pieces", "it to 1");
  refuse(parallel.tensor_sequence > 1, "parallel.tensor_sequence", "it cuts rows into equal pieces", "it to 1");
  refuse(parallel.tensor > 1 && parallel.sequence_parallel, "parallel.sequence_parallel", "it cuts the tokens of a pass into equal pieces",
         "it to false");
  refuse(config.train.gpu_graphs, "train.gpu_graphs", "a graph has one shape", "it to false");
  refuse(config.train.reproducible, "train.reproducible", "which rows make a microbatch depends on the ranks", "it to false");
  refuse(config.train.balance_loss > 0 && config.train.balance_over == "sequence", "train.balance_over = \"sequence\"",
         "the rows of a microbatch are one", "it to microbatch or batch");
}

}  // namespace ingot::train
