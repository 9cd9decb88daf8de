// Where masters and moments are between updates: beside the parameters, or in the host's memory, from where an update brings those of one
// parameter after another.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "device/host_stash.h"

namespace ingot::optim {

struct Slot;

class StateHome {
 public:
  /// Null: beside the parameters.
  explicit StateHome(std::shared_ptr<device::HostStash> stash = nullptr) : stash_(std::move(stash)) {}
  bool is_on_host() const { return stash_ != nullptr; }

  /// The tensor as it is between updates.
  at::Tensor settle(const at::Tensor& tensor) const { return stash_ ? stash_->settle(tensor) : tensor; }
  /// Calls `work` for slots [begin, end) while the tensors that are named of them are on the device: for all at once, or, where they are in
  /// the host's memory, for each in turn. Those of the next slot come and those of the one before go meanwhile: the device holds three
  /// slots' at a time.
  using TensorsOf = std::function<std::vector<at::Tensor*>(Slot&)>;
  void visit(const std::vector<Slot*>& slots, const TensorsOf& tensors_of, const std::function<void(size_t begin, size_t end)>& work);
  /// Returns when the host may read, or write, what lies in its memory.
  void wait() const;

 private:
  using Stored = device::HostStash::Stored;

  std::shared_ptr<device::HostStash> stash_;
  std::unordered_map<const c10::TensorImpl*, Stored> stored_;  // by the tensor of the host: since it was put there last
};

}  // namespace ingot::optim
