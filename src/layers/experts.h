// Dropless mixture of gated MLPs: every token goes to the expert it chose, whatever the load. Tokens are sorted by expert,
// each expert multiplies its contiguous rows, and the rows return to their places.
// Gradient convention: expert weights get theirs in Parameter::grad; experts without tokens contribute zero.
#pragma once

#include "comm/group.h"
#include "layers/parameter.h"

namespace ingot::layers {

/// What happens to a token whose class is past the last expert (ZAYA1's skip class).
enum class SkipOutput { zero, identity };

/// Expert parallelism: ranks hold some of the experts each, and `slices` neighbours share each expert by its inner width. Rows
/// travel to all slices of their expert with one all_to_all, their results come back with another and are added up; backward
/// the same the other way round. For every row and slice that leaves it a rank sends 2 x hidden elements and 1 fp32 number, and
/// receives as many back, per layer and microbatch, forward and backward together.
struct ExpertAxis {
  int64_t slices = 1;
  comm::Group* group = nullptr;  // ranks with all experts and slices, slices fastest; null = everything is here
  bool is_on() const { return group != nullptr && group->size() > 1; }
};

/// int64 [classes] on the device of `choice`, which has classes from 0 on: how many there are of each. Does not wait for a GPU.
at::Tensor class_counts(const at::Tensor& choice, int64_t classes);

/// x [tokens, hidden]; choice int64 [tokens * top_k] in 0..experts (experts = skip); weight [tokens * top_k] fp32.
/// Slot s belongs to token s / top_k. gate_up [experts, 2 ffn, hidden] (gate rows first), down [experts, hidden, ffn], or the
/// experts and slices of them that are here.
/// -> [tokens, hidden] in x's dtype: the sum over a token's slots of weight * expert(x). Saves x and the pre-activations.
at::Tensor experts(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& weight, Parameter& gate_up, Parameter& down,
                   int64_t top_k, SkipOutput skip, const ExpertAxis& axis = {});

}  // namespace ingot::layers
