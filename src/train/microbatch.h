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
  layers::PreferencePairs pairs{};                           // of pairs of answers, else undefined
  int64_t target_count = 0;                                  // of a rank's whole batch, or its pairs; not of its parts
};

}  // namespace ingot::train
