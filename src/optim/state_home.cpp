#include "optim/state_home.h"

#include <optional>

#include "optim/update_rule.h"

namespace ingot::optim {

void StateHome::visit(const std::vector<Slot*>& slots, const TensorsOf& tensors_of,
                      const std::function<void(size_t begin, size_t end)>& work) {
  if (!stash_) return work(0, slots.size());
  struct Visitor {
    std::vector<device::HostStash::Returning> coming;
    std::vector<at::Tensor> here;  // until it is out again
    std::vector<Stored> out;
  };
  std::vector<Visitor> visitors(slots.size());
  const auto bring = [&](size_t i) {
    for (const auto* tensor : tensors_of(*slots[i])) {
      const auto known = stored_.find(tensor->unsafeGetTensorImpl());
      visitors[i].coming.push_back(stash_->bring(known == stored_.end() ? Stored{*tensor, nullptr} : known->second));
    }
  };
  const auto leave = [&](size_t i) {
    for (const auto& stored : visitors[i].out) stash_->let_go(stored);
    visitors[i] = {};
  };
  if (!slots.empty()) bring(0);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (i + 1 < slots.size()) bring(i + 1);
    auto& visitor = visitors[i];
    const auto tensors = tensors_of(*slots[i]);
    std::vector<at::Tensor> hosts;
    for (size_t k = 0; k < tensors.size(); ++k) {
      visitor.here.push_back(stash_->take(visitor.coming[k]));
      hosts.push_back(std::exchange(*tensors[k], visitor.here.back()));
    }
    visitor.coming.clear();
    work(i, i + 1);
    for (size_t k = 0; k < tensors.size(); ++k) {
      visitor.out.push_back(stash_->put(visitor.here[k], hosts[k]));
      stored_[hosts[k].unsafeGetTensorImpl()] = visitor.out.back();
      *tensors[k] = hosts[k];
    }
    if (i > 0) leave(i - 1);
  }
  if (!slots.empty()) leave(slots.size() - 1);
}

void StateHome::wait() const {
  for (const auto& [tensor, stored] : stored_)
    if (stored.arrived) stored.arrived->synchronize();
}

}  // namespace ingot::optim
