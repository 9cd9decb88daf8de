// What goes along with a pass through a model: what runs from block to block, who watches, what generation remembers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/aten.h"
#include "layers/activation_offload.h"
#include "layers/head.h"
#include "layers/linear_attention.h"
#include "layers/routing_losses.h"
#include "layers/schedulable.h"
#include "layers/sequences.h"

namespace ingot::models {

/// What runs along the depth, from block to block and from pipeline stage to stage.
struct Stream {
  at::Tensor residual;      // [batch, seq, hidden], or this rank's tokens [1, tokens, hidden]; fp32 (fp64 for fp64)
  at::Tensor router_state;  // [tokens, router_hidden]; undefined before the first router that has one
};

enum class Recompute { none, selective, full };  // selective: the feed-forward half of each block, whose activations are largest
Recompute recompute_from_name(const std::string& name);

/// Sees what happens inside a forward pass: the verifier compares it, the trainer counts expert loads.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_hidden(int64_t /*layer*/, const at::Tensor& /*residual*/) {}  // layer -1: input of layer 0
  virtual void on_routing(int64_t /*layer*/, const layers::Routing& /*routing*/) {}
  /// Of a layer whose experts take no more than their capacity: what is left of the routing's choice, where `experts` is no expert.
  virtual void on_capacity(int64_t /*layer*/, const at::Tensor& /*choice*/, int64_t /*experts*/) {}
};

/// Hears how far a pass has come, so that weights can arrive in time and work on finished gradients begin before the pass ends.
/// Layers are those of Parameter::layer: -1 the embedding, then the blocks, their number for the final norm and the head.
class LayerHooks {
 public:
  virtual ~LayerHooks() = default;
  virtual void before_forward(int64_t /*layer*/) {}
  virtual void after_forward(int64_t /*layer*/) {}
  /// Of the blocks; the head computes its gradients in the forward pass (layers/head.h).
  virtual void before_backward(int64_t /*layer*/) {}
  /// Gradients of this layer's parameters, and of all behind it, are complete. Called for the head first, down to block 0; the
  /// embedding's are complete when backward returns.
  virtual void after_backward(int64_t /*layer*/) {}
};

/// State of one layer during generation; each kind of layer uses its own part.
struct LayerCache : layers::AttentionCache {
  layers::LinearAttentionCache linear;
};

/// What multi-token prediction reads and predicts: of each predictor the tokens after those that the one before has read, and what follows
/// them (-100: nothing).
struct FurtherTargets {
  double coefficient = 0;                // of the mean over the predictors' losses
  std::vector<at::Tensor> ids, targets;  // int64 [batch, own tokens] each
  at::Tensor total;                      // fp32 [1]: their mean, without the coefficient, is added to it; may be undefined
};

struct ForwardContext {
  std::shared_ptr<layers::Sequences> sequences;
  Recompute recompute = Recompute::none;
  std::vector<std::vector<LayerCache>*> caches{};  // by layer: one for a batch, or of each part its own (layers/caches.h); inference only
  Observer* observer = nullptr;
  LayerHooks* hooks = nullptr;
  std::shared_ptr<layers::RoutingLosses> routing_losses;  // null: none, as outside of training
  std::shared_ptr<const FurtherTargets> further;          // null: predictors do not run, as outside of training
  layers::WeighLosses weigh;                              // empty: the loss is a mean over targets (layers/head.h)
  bool learns_drafts = false;                             // of a model with model.draft_block; not outside of training
  at::Tensor losses{};        // of all positions, written by the head (layers/head.h), with drafts the means of both; may be undefined
  at::Tensor draft_loss{};    // fp32 [1]: the drafts' part of the loss is added to it; may be undefined
  bool drops_tokens = false;  // experts take no more than model.expert_capacity, as in training
  std::shared_ptr<layers::ActivationOffload> offload;  // of what full recomputation keeps; null: it stays
};

/// Who chooses each token's experts in place of the router, given a layer and the router's choices, int64 [this rank's tokens * top_k];
/// asked again while activations are recomputed (layers::is_recomputing). For comparing runs that rounding would route apart.
using RoutingReplay = std::function<at::Tensor(int64_t layer, const at::Tensor& choice)>;

}  // namespace ingot::models
