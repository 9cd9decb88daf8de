// What the tests of this folder share: random matrices, Muon's iteration by its definition, and lists of parameters.
#pragma once

#include <ATen/core/grad_mode.h>

#include <string>
#include <utility>

#include "layers/parameter.h"
#include "optim/newton_schulz.h"
#include "optim/optimizer.h"

namespace ingot::optim {

inline at::Tensor random(at::IntArrayRef sizes, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::kDouble);
}

// K. Jordan's, five steps.
inline const Quintics kFive(5, {3.4445, -4.7750, 2.0315});

// The definition of Muon (ZAYA1, arXiv 2511.17127, section V-B), written out for one matrix.
inline at::Tensor iterated(at::Tensor x, const Quintics& steps) {
  const bool tall = x.size(0) > x.size(1);
  if (tall) x = x.t();
  x = x / (x.norm() + 1e-7);
  for (const auto& q : steps) {
    const auto gram = at::mm(x, x.t());
    x = q.a * x + at::mm(q.b * gram + q.c * at::mm(gram, gram), x);
  }
  return tall ? x.t() : x;
}

struct Fixture {
  layers::ParameterList list;
  layers::Parameter& add(const std::string& name, tensor::Shape shape, layers::Parameter::Kind kind) {
    auto& p = list.add({.name = name, .shape = std::move(shape), .kind = kind, .keeps_fp32 = kind == layers::Parameter::Kind::buffer});
    return p;
  }
};

using Kind = layers::Parameter::Kind;

}  // namespace ingot::optim
