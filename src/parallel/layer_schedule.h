// How the layers of a model run where their weights are sharded: one object for each method. Models hand their layers to it and ask it what
// it shards; no model knows which method it is. This class is the schedule of one rank: each layer runs its local function on all of its
// weights.
//
// A method is one folder: its axis (plain values, in Layout), and a subclass of this that make_schedule() returns. What it refuses, it says
// in the three require functions.
#pragma once

#include <memory>

#include "layers/head.h"
#include "layers/schedulable.h"
#include "parallel/layout.h"

namespace ingot::parallel {

class LayerSchedule {
 public:
  LayerSchedule() = default;
  LayerSchedule(const LayerSchedule&) = delete;
  LayerSchedule& operator=(const LayerSchedule&) = delete;
  virtual ~LayerSchedule() = default;

  // ---- what it shards ----

  /// The setting parallel.<setting> that asks for it.
  virtual const char* setting() const { return "tensor"; }
  /// Ranks that share each matrix and the vocabulary.
  virtual int ranks() const { return 1; }
  bool shards_weights() const { return ranks() > 1; }
  /// This rank's share of n rows, columns or heads.
  virtual tensor::Range share(int64_t n) const { return {0, n}; }
  /// Of n heads those that a layer's local function computes with.
  virtual int64_t local_heads(int64_t n) const { return n; }
  /// Whether all ranks have the same tokens between layers, so that norms and routers are repeated.
  virtual bool repeats_tokens() const { return false; }

  // ---- what it refuses: ConfigError ----

  /// `value`: of the setting model.<name>, which is shared out.
  void require_shares(const char* name, int64_t value) const;
  /// Heads of attention.
  virtual void require_heads(int64_t /*heads*/, int64_t /*kv_heads*/, int64_t /*head_dim*/) const {}
  /// A layer that only has a local function, and so cannot run on another rank's weights.
  virtual void require_local(const char* /*layer*/) const {}

  // ---- how layers run ----

  /// x as it is between layers -> what the local function takes, [batch, seq, hidden] with all tokens of the rank's context.
  virtual at::Tensor enter(const at::Tensor& x, const layers::Sequences& /*sequences*/) const { return x; }
  /// The local function's part of a sum -> the sum, as it is between layers.
  virtual at::Tensor leave(const at::Tensor& partial) const { return partial; }
  /// A weight that every rank holds whole and uses for its own heads: its gradient is summed over the ranks that repeat tokens.
  virtual at::Tensor repeated(const at::Tensor& weight) const { return weight; }

  /// x, and what comes back, as they are between layers.
  virtual at::Tensor run(const layers::TokenwiseLayer& layer, const at::Tensor& x, const layers::Sequences& sequences) const;
  virtual at::Tensor run(const layers::AttentionLayer& layer, const at::Tensor& x, layers::Sequences& sequences,
                         const layers::Caches<layers::AttentionCache>& caches) const;
  /// ids int64 [batch, own tokens] -> as it is between layers, of `dtype`. `table`: rows of the vocabulary.
  virtual at::Tensor embed(const at::Tensor& ids, layers::Parameter& table, at::ScalarType dtype, const layers::Sequences& sequences) const;
  /// layers::head_loss of `hidden` as it is between layers.
  virtual at::Tensor head_loss(const at::Tensor& hidden, layers::Parameter& head, const at::Tensor& targets, double scale,
                               const layers::HeadRule& rule, const layers::Sequences& sequences) const;
  /// layers::logits_of, of the whole vocabulary where ranks generate together.
  virtual at::Tensor logits(const at::Tensor& hidden, const layers::Parameter& head) const;
};

std::unique_ptr<LayerSchedule> make_schedule(const Layout& layout);

}  // namespace ingot::parallel
