// ZAYA1's router (facts zaya1 §4.4): a projection whose state runs along depth, a norm, a small MLP, and a choice that a
// balancing bias shifts without entering the mixing weight. The whole router works in fp32 (fp64 for fp64).
// Gradient convention: matrices get theirs in Parameter::grad (layers/linear.h), vectors from autograd; they come through
// `weight` and `state`. The choice has no gradient, nor has the balancing bias, which the optimizer moves by itself.
#pragma once

#include <functional>

#include "layers/parameter.h"

namespace ingot::layers {

struct RouterParameters {
  Parameter *down_weight, *down_bias;  // [router_hidden, hidden], [router_hidden]
  Parameter* state_scale;              // [router_hidden]; null in the first layer, which has no state before it
  Parameter* norm_weight;              // [router_hidden]
  Parameter *fc1_weight, *fc1_bias, *fc2_weight, *fc2_bias;
  Parameter* out_weight;      // [classes, router_hidden]; classes = experts, plus one when tokens may skip
  Parameter* balancing_bias;  // [classes], a buffer
  int64_t experts = 0;        // classes that are experts; they come first
};

struct Routing {
  at::Tensor state;   // [tokens, router_hidden], for the next layer's router
  at::Tensor logits;  // [tokens, classes]
  at::Tensor weight;  // [tokens] probability of the chosen class, differentiable
  at::Tensor choice;  // int64 [tokens]
};

/// Takes the classes that the router chose, int64 [tokens], and returns those that count; the router works as ever.
using ChooseClasses = std::function<at::Tensor(const at::Tensor& choice)>;

/// x [tokens, hidden], previous_state [tokens, router_hidden] or undefined.
Routing route(const at::Tensor& x, const at::Tensor& previous_state, const RouterParameters& parameters, double norm_eps,
              const ChooseClasses& choose = {});

}  // namespace ingot::layers
