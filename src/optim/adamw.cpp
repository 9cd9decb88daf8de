#include "optim/adamw.h"

#include "kernels/update.h"

namespace ingot::optim {

void AdamW::prepare(const RuleShare& share, const Team&) { slots_ = share.slots; }

void AdamW::update(const Update& update) {
  for (auto* slot : slots_)
    kernels::adamw_update(
        slot->master, slot->shard.gradient_slice(), slot->state[0], slot->state[1], slot->shard.value,
        {update.lr, config_.beta1, config_.beta2, config_.eps, slot->weight_decay, update.gradient_scale, update.step});
}

}  // namespace ingot::optim
