#include "optim/adamw.h"

#include "kernels/stochastic_rounding.h"
#include "kernels/update.h"

namespace ingot::optim {

void AdamW::prepare(const RuleShare& share, const Team&) {
  slots_ = share.slots;
  home_ = &share.home;
}

void AdamW::update(const Update& update) {
  const auto tensors_of = [](Slot& slot) {
    std::vector<at::Tensor*> tensors = {&slot.state[0], &slot.state[1]};
    if (slot.has_master) tensors.push_back(&slot.master);
    return tensors;
  };
  home_->visit(slots_, tensors_of, [&](size_t begin, size_t end) {
    std::vector<kernels::AdamwTensors> all;
    for (size_t i = begin; i < end; ++i) {
      const auto& slot = *slots_[i];
      const double width = slot.shard.parameter->width;  // decay goes by the learning rate as it is
      all.push_back({slot.master, slot.shard.gradient_slice(), slot.state[0], slot.state[1], slot.shard.value, update.lr / width,
                     slot.weight_decay * width, kernels::rounding_key("moments." + slot.shard.parameter->name, update.step)});
    }
    kernels::adamw_update(all, {config_.beta1, config_.beta2, config_.eps, update.gradient_scale, update.step});
  });
}

}  // namespace ingot::optim
