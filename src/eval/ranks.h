// The ranks that evaluate one model together while they train it (train.evaluations): questions are dealt out, and all have the results.
#pragma once

#include "comm/group.h"
#include "models/forward_context.h"

namespace ingot::eval {

struct Ranks {
  comm::Group* dealt = nullptr;         // among whom questions are dealt: data-parallel ranks
  bool makes_equal_passes = false;      // they communicate within a pass: who has nothing left makes passes of nothing
  models::LayerHooks* hooks = nullptr;  // bring the weights of each layer; may be null

  bool deals() const { return dealt && dealt->size() > 1; }
};

}  // namespace ingot::eval
