// Dropless mixture of gated MLPs: every token goes to the expert it chose, whatever the load. Tokens are sorted by expert,
// each expert multiplies its contiguous rows, and the rows return to their places.
// Gradient convention: expert weights get theirs in Parameter::grad, biases from autograd; experts without tokens contribute zero.
#pragma once

#include <functional>
#include <memory>

#include "kernels/gate.h"
#include "layers/parameter.h"

namespace ingot::layers {

/// What happens to a token whose class is past the last expert (ZAYA1's skip class).
enum class SkipOutput { zero, identity };

/// How rows of one pass get to experts on other ranks, and their results back (parallel/expert).
class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;
  /// Rows that are here for each expert that is here, after dispatch().
  virtual const std::vector<int64_t>& counts() const = 0;
  /// [own rows, …] in the order of their experts -> [rows here, …] in the order of the experts here.
  virtual at::Tensor dispatch(const at::Tensor& rows) const = 0;
  /// The other way round: [rows here, …] -> [own rows, …], the results of slices added up.
  virtual at::Tensor combine(const at::Tensor& rows) const = 0;
};
/// Given this rank's rows for each expert of the model. Empty: all experts are here.
using StartExpertExchange = std::function<std::shared_ptr<const ExpertExchange>(const std::vector<int64_t>& counts, at::Device device)>;

/// gate_up [experts, 2 ffn, hidden] (gate rows first), down [experts, hidden, ffn], or the experts and slices of them that are here.
/// Biases, both or none: [experts, 2 ffn], [experts, hidden]; not with slices, and on a GPU experts that have them run one by one.
struct ExpertWeights {
  Parameter &gate_up, &down;
  Parameter *gate_up_bias = nullptr, *down_bias = nullptr;
  kernels::Gate gate = kernels::Gate::silu;
};

/// x [tokens, hidden]; choice int64 [tokens * top_k] in 0..experts (experts = skip); weight [tokens * top_k] fp32.
/// Slot s belongs to token s / top_k.
/// -> [tokens, hidden] in x's dtype: the sum over a token's slots of weight * expert(x). Saves x and the pre-activations.
at::Tensor experts(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& weight, const ExpertWeights& weights, int64_t top_k,
                   SkipOutput skip, const StartExpertExchange& start = {});

}  // namespace ingot::layers
