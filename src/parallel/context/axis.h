// Context parallelism: the ranks of a group hold slices of the same rows, all of the weights, and communicate where tokens mix. Which
// tokens a rank has is layers::TokenOrder; how attention reaches the keys of other ranks is an AttentionMethod, how the states of linear
// attention get from rank to rank a StateMethod. Plain values; the group outlives them.
#pragma once

#include <memory>

#include "comm/group.h"
#include "layers/context_schedule.h"
#include "parallel/context/attention_method.h"
#include "parallel/context/state_method.h"

namespace ingot::parallel {

struct ContextAxis : layers::TokenOrder {
  comm::Group* group = nullptr;  // null while a model is only described, or for size 1
  const AttentionMethod* method = &kRing;
  const StateMethod* states = &kLasp2;

  /// What layers run by; null without the axis.
  std::shared_ptr<const layers::ContextSchedule> schedule() const;
};

}  // namespace ingot::parallel
