// Biases on the outputs of cut matrices, and products with biases as a description has them.
#pragma once

#include <numeric>
#include <vector>

#include "layers/parameter.h"
#include "layers/workload.h"

namespace ingot::models {

/// Biases of outputs are added once, to the whole sum. `bias` may be null.
inline at::Tensor with_bias(const at::Tensor& x, const layers::Parameter* bias) { return bias ? (x + bias->value).to(x.scalar_type()) : x; }

inline layers::ActivationId describe_bias(layers::Workload& work, layers::ActivationId product) {
  const auto out = work.narrow(work.activation(product).width);
  work.kernel("add", {product}, {out}, {});
  return out;
}

/// Products with weights [out_i, in], and the biases on top.
inline layers::ActivationId describe_linear(layers::Workload& work, layers::ActivationId from, const std::vector<int64_t>& outs,
                                            bool biased) {
  const auto product = work.narrow(std::accumulate(outs.begin(), outs.end(), int64_t{0}));
  work.linear(from, product, outs);
  return biased ? describe_bias(work, product) : product;
}

}  // namespace ingot::models
