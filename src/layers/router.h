// Routers: who chooses the experts of each token. A balancing bias shifts the choice without entering the mixing weight. All work in
// fp32 (fp64 for fp64).
// Gradient convention: matrices get theirs in Parameter::grad (layers/linear.h), vectors from autograd; they come through
// `weight` and `state`. The choice has no gradient, nor has the balancing bias, which the optimizer moves by itself.
#pragma once

#include "kernels/choose_experts.h"
#include "layers/parameter.h"

namespace ingot::layers {

/// ZAYA1's: a projection whose state runs along depth, a norm and a small MLP.
struct RouterParameters {
  Parameter *down_weight, *down_bias;  // [router_hidden, hidden], [router_hidden]
  Parameter* state_scale;              // [router_hidden]; null in the first layer, which has no state before it
  Parameter* norm_weight;              // [router_hidden]
  Parameter *fc1_weight, *fc1_bias, *fc2_weight, *fc2_bias;
  Parameter* out_weight;      // [classes, router_hidden]; classes = experts, plus one when tokens may skip
  Parameter* balancing_bias;  // [classes], a buffer
  int64_t experts = 0;        // classes that are experts; they come first
  int64_t top_k = 1;
};

/// The common one (Mixtral, OLMoE, Qwen3-MoE, DeepSeek-V3): one matrix, and a rule.
struct LinearRouterParameters {
  Parameter* weight;          // [experts, hidden]
  Parameter* balancing_bias;  // [experts], a buffer
  kernels::ExpertRule rule;
  Parameter* bias = nullptr;  // [experts], of the logits; null = none
};

struct Routing {
  at::Tensor state;                                            // [tokens, router_hidden], for the next layer's router; undefined without
  at::Tensor logits;                                           // [tokens, classes]
  at::Tensor weight;                                           // [tokens * top_k] probability of the chosen class, differentiable
  at::Tensor choice;                                           // int64 [tokens * top_k], each token's side by side, best first
  kernels::RouterScore score = kernels::RouterScore::softmax;  // what the logits went through
};

/// Takes the classes that the router chose, int64 [tokens * top_k], and returns those that count; the router works as ever.
using ChooseClasses = kernels::ChangeChoice;

/// `choice` where each expert keeps no more than `capacity` of its slots, those with the largest weights; the others get the class
/// `experts`, whose tokens the mixture leaves out. Slots with other classes stay. All int64 or floating [tokens * top_k]; no wait for the
/// device.
at::Tensor within_capacity(const at::Tensor& choice, const at::Tensor& weight, int64_t experts, int64_t capacity);

/// x [tokens, hidden], previous_state [tokens, router_hidden] or undefined.
Routing route(const at::Tensor& x, const at::Tensor& previous_state, const RouterParameters& parameters, double norm_eps,
              const ChooseClasses& choose = {});
Routing route(const at::Tensor& x, const LinearRouterParameters& parameters, const ChooseClasses& choose = {});

}  // namespace ingot::layers
