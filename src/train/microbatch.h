// What one forward and backward pass takes: some of a rank's sequences.
#pragma once

#include <vector>

#include "device/aten.h"
#include "layers/preference_loss.h"

namespace ingot::train {

struct Microbatch {
  at::Tensor ids, targets;                                   // int64 [rows, own tokens], on the model's device
  std::vector<at::Tensor> further_ids{}, further_targets{};  // of multi-token prediction, for each predictor; as those above
  at::Tensor document_start;                                 // int32 [rows, tokens of a row], on the host; undefined without documents
  at::Tensor losses{};                                       // [rows, own tokens], which the head fills; undefined where nobody asks
  layers::PreferencePairs pairs{};                           // of pairs of answers, else undefined
  // Of a rank's whole batch, not of its parts.
  int64_t target_count = 0;        // or pairs
  std::vector<int32_t> sources{};  // [rows], where they are told apart
  at::Tensor row_targets{};        // int64 [rows], on the host: targets of this rank's tokens; the same
  // Of variable rows, which are one row of tokens here; else 0 and empty.
  std::vector<int64_t> row_begins{};   // as in data::Batch, where rows are told apart
  int64_t most_of_row = 0;             // data.seq_len
  std::vector<int64_t> part_begins{};  // of a rank's whole batch: the first token of each microbatch, and the end of all
};

}  // namespace ingot::train
