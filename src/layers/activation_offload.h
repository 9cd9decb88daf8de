// What recomputed pieces keep of one forward pass, in the host's memory until their backward pass: torchtune's and LLMQ's offloaded
// activation checkpoints. A piece's inputs go out while the next piece runs, and come back while the piece behind it is run again; the
// device has those of three pieces at a time. Those of the last two stay.
#pragma once

#include <optional>
#include <vector>

#include "device/host_stash.h"

namespace ingot::layers {

class ActivationOffload {
 public:
  explicit ActivationOffload(std::shared_ptr<device::HostStash> stash) : stash_(std::move(stash)) {}

  /// Before a piece runs, of which `inputs` must not change any more; some may be undefined. The piece's number.
  size_t keep(const std::vector<at::Tensor>& inputs);
  /// In its backward pass, once, in the opposite order.
  std::vector<at::Tensor> take(size_t piece);

 private:
  struct Kept {
    at::Tensor here;                                        // until it is out
    std::optional<device::HostStash::Stored> out;           // on its way, or there
    std::optional<device::HostStash::Returning> returning;  // before it is needed
  };
  using Piece = std::vector<Kept>;
  void bring(size_t piece);

  std::shared_ptr<device::HostStash> stash_;
  std::vector<Piece> pieces_;
};

}  // namespace ingot::layers
