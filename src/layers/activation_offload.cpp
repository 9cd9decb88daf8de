#include "layers/activation_offload.h"

namespace ingot::layers {

size_t ActivationOffload::keep(const std::vector<at::Tensor>& inputs) {
  const size_t number = pieces_.size();
  if (number >= 2)
    for (auto& kept : pieces_[number - 2])
      if (kept.out) stash_->let_go(*kept.out), kept.here.reset();
  if (number >= 1)
    for (auto& kept : pieces_[number - 1])
      if (kept.here.defined()) kept.out = stash_->put(kept.here);
  auto& piece = pieces_.emplace_back();
  for (const auto& input : inputs) piece.push_back({.here = input.defined() ? input.detach() : input, .out = {}, .returning = {}});
  return number;
}

void ActivationOffload::bring(size_t piece) {
  for (auto& kept : pieces_[piece])
    if (kept.out && !kept.here.defined() && !kept.returning) kept.returning = stash_->bring(*kept.out);
}

std::vector<at::Tensor> ActivationOffload::take(size_t piece) {
  bring(piece);
  if (piece > 0) bring(piece - 1);
  std::vector<at::Tensor> inputs;
  for (auto& kept : pieces_[piece]) {
    if (kept.out && kept.here.defined()) stash_->let_go(*kept.out);  // it never had to leave
    inputs.push_back(kept.returning ? stash_->take(*kept.returning) : kept.here);
  }
  pieces_[piece].clear();
  return inputs;
}

}  // namespace ingot::layers
