// The loss where the vocabulary is cut over the ranks of a group, all of which have the same hidden state.
#pragma once

#include "comm/group.h"
#include "layers/parameter.h"

namespace ingot::parallel {

/// kernels::cross_entropy of logits [rows, own vocabulary]; `weight`: this rank's rows of the head. All ranks return the same
/// losses; their gradients of the hidden state are parts of a sum. A rank sends 3 numbers a row to each other rank.
at::Tensor cross_entropy_over_ranks(at::Tensor logits, const at::Tensor& labels, const layers::Parameter& weight, double scale,
                                    const at::Tensor& gradient, double z_loss, comm::Group& group);

/// Logits [..., own vocabulary] of all ranks side by side, the same on every rank.
at::Tensor gather_vocabulary(const at::Tensor& own, comm::Group& group);

}  // namespace ingot::parallel
