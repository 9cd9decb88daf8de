// A layer over ranks as the operations of every rank: what the layers of src/layers do, in their order, without doing it. Pure functions.
//
// Counted: projections, attention, the gated MLP, norms and residuals of a block, and all messages between the ranks of the method's axes.
// Not counted: gradients of norms (hidden elements a block), embedding, loss, optimizer, and axes outside of the method's.
#pragma once

#include "schedule/layout.h"
#include "schedule/operation_list.h"

namespace ingot::schedule {

/// Throws ConfigError for one that check() refuses.
Program build(const Layout& layout);
/// One rank's list alone.
OperationList build_rank(const Layout& layout, int rank);

/// Elements of the weights that a rank holds, over all blocks.
int64_t weights_of_rank(const Layout& layout);

}  // namespace ingot::schedule
