#include "layers/activation_offload.h"

namespace ingot::layers {

size_t ActivationOffload::keep(const std::vector<at::Tensor>& inputs) {
  if (!pieces_.empty())
    for (auto& kept : pieces_.back())
      if (kept.here.defined()) {
        kept.out = stash_->put(kept.here);
        kept.here.reset();
      }
  auto& piece = pieces_.emplace_back();
  for (const auto& input : inputs) piece.push_back({.here = input.defined() ? input.detach() : input, .out = {}, .returning = {}});
  return pieces_.size() - 1;
}

void ActivationOffload::bring(size_t piece) {
  for (auto& kept : pieces_[piece])
    if (kept.out) {
      kept.returning = stash_->bring(*kept.out);
      kept.out.reset();
    }
}

std::vector<at::Tensor> ActivationOffload::take(size_t piece) {
  bring(piece);
  if (piece > 0) bring(piece - 1);
  std::vector<at::Tensor> inputs;
  for (auto& kept : pieces_[piece]) inputs.push_back(kept.returning ? stash_->take(*kept.returning) : kept.here);
  pieces_[piece].clear();
  return inputs;
}

}  // namespace ingot::layers
