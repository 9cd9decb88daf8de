// A model: embedding, blocks, head. A family (one file in this folder) declares its parameters under their Hugging Face
// names, builds its blocks from layers, and translates its config.json.
//
// A model is used by one thread at a time. It must outlive the graphs made with it.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "layers/cca_attention.h"
#include "layers/cost.h"
#include "layers/linear_attention.h"
#include "layers/parameter.h"
#include "layers/router.h"
#include "layers/sequence_axis.h"
#include "layers/sequences.h"
#include "layers/tensor_axis.h"
#include "layers/tensor_sequence/axis.h"
#include "layers/workload.h"
#include "models/config.h"

namespace ingot::models {

/// What runs along the depth from block to block (and, one day, from pipeline stage to stage).
struct Stream {
  at::Tensor residual;      // [batch, seq, hidden], or this rank's tokens [1, tokens, hidden]; fp32 (fp64 for fp64)
  at::Tensor router_state;  // [tokens, router_hidden]; undefined before the first router and in models without
};

/// What of a model this rank holds, and with whom it computes; nothing = all of it, alone.
struct Layout {
  layers::TensorAxis tensor;
  layers::SequenceAxis sequence;       // with a tensor_sequence axis: how that one cuts the tokens
  layers::TensorSequenceAxis tensor_sequence;
  struct Experts {
    int rank = 0, size = 1;        // which of the equal shares of the experts
    int slice = 0, slices = 1;     // which part of each one's inner width
    comm::Group* group = nullptr;  // layers/experts.h
    bool is_on() const { return size * slices > 1; }
  } experts;
  /// Pieces of the depth: piece g lies on stage g % size as its chunk g / size. The first has the embedding, the last the final
  /// norm and the head.
  struct Stage {
    int rank = 0, size = 1;
    std::vector<tensor::Range> pieces;  // layers of each; empty = one piece with all
    bool is_on() const { return size > 1; }
    bool is_first(int chunk) const { return rank == 0 && chunk == 0; }
    bool is_last(int chunk) const { return pieces.empty() || static_cast<size_t>(chunk * size + rank) + 1 == pieces.size(); }
    int chunks() const { return pieces.empty() ? 1 : static_cast<int>(pieces.size()) / size; }
    bool has_embedding() const { return rank == 0; }
    bool has_head() const { return rank == size - 1; }
    bool holds(int64_t layer) const {
      if (pieces.empty()) return true;
      for (size_t g = static_cast<size_t>(rank); g < pieces.size(); g += static_cast<size_t>(size))
        if (layer >= pieces[g].begin && layer < pieces[g].end) return true;
      return false;
    }
  } stage;

  /// Nothing is ever computed with it: planners describe shapes, too, that a family cannot run (zaya1 with several experts for a token).
  bool only_described = false;

  /// Of n rows, columns or heads of a matrix that is cut, by whichever axis.
  tensor::Range weight_share(int64_t n) const { return tensor_sequence.is_on() ? tensor_sequence.share(n) : tensor.share(n); }
  bool cuts_weights() const { return tensor.is_on() || tensor_sequence.is_on(); }
};

enum class Recompute { none, selective, full };  // selective: the feed-forward half of each block, whose activations are largest
Recompute recompute_from_name(const std::string& name);

/// Sees what happens inside a forward pass: the verifier compares it, the trainer counts expert loads.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_hidden(int64_t /*layer*/, const at::Tensor& /*residual*/) {}  // layer -1: input of layer 0
  virtual void on_routing(int64_t /*layer*/, const layers::Routing& /*routing*/) {}
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
struct LayerCache : layers::CcaCache {
  layers::LinearAttentionCache linear;
};

struct ForwardContext {
  std::shared_ptr<layers::Sequences> sequences;
  Recompute recompute = Recompute::none;
  std::vector<LayerCache>* caches = nullptr;  // one per layer; inference only
  Observer* observer = nullptr;
  LayerHooks* hooks = nullptr;
};

class Model {
 public:
  explicit Model(ModelConfig config, const Layout& layout = {}) : config_(std::move(config)), layout_(layout) {}
  virtual ~Model() = default;

  const ModelConfig& config() const { return config_; }
  const Layout& layout() const { return layout_; }
  layers::ParameterList& parameters() { return parameters_; }
  const layers::ParameterList& parameters() const { return parameters_; }
  /// Allocates all parameters. `dtype` is the compute dtype: fp64, fp32 or bf16.
  void allocate(at::ScalarType dtype, at::Device device = at::kCPU);
  /// Initial values as a pure function of (seed, name, index).
  virtual void initialise(uint64_t seed) { parameters_.initialise(seed); }
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }
  /// The balancing bias of a layer's router; null where there is none.
  virtual layers::Parameter* balancing_bias(int64_t /*layer*/) { return nullptr; }
  /// Who chooses each token's expert in place of the router, given a layer and the router's choices, int64 [this rank's tokens]; asked
  /// again while activations are recomputed (layers::is_recomputing). For comparing runs that rounding would route apart.
  using RoutingReplay = std::function<at::Tensor(int64_t layer, const at::Tensor& choice)>;
  void set_routing_replay(RoutingReplay replay) { routing_replay_ = std::move(replay); }
  /// Later phases of a run may move the RoPE base.
  virtual void set_rope_base(double base) = 0;

  /// ids int64 [batch, seq] -> normed hidden state [batch, seq, hidden] in the compute dtype, ready for the head.
  at::Tensor forward(const at::Tensor& ids, ForwardContext& context);
  /// A chunk of a pipeline stage: its layers, behind the embedding of `ids` if it is the model's first piece, else behind `in`.
  Stream run_chunk(int chunk, const at::Tensor& ids, const Stream& in, ForwardContext& context);
  /// The loss (as below) of what came out of the model's last piece.
  at::Tensor loss_of(const Stream& stream, const at::Tensor& targets, double scale, ForwardContext& context);
  /// Whether blocks pass on a router's state, and its width.
  virtual int64_t router_state_width() const { return 0; }
  /// Sum of the losses of all positions times `scale` (0-dim), to be backpropagated with gradient 1.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets, double scale, ForwardContext& context);
  /// [batch, seq, vocab] of a hidden state, fp32 (fp64 for fp64); no gradient. On a tensor_sequence axis that all ranks have alike.
  at::Tensor logits(const at::Tensor& hidden) const;

  /// This rank's part of a forward pass as data: one block, and what stands before and behind the blocks. Each takes an empty Workload; the
  /// residual stream enters a block and the head.
  virtual void describe_block(int64_t layer, layers::Workload& work) const = 0;
  virtual void describe_embedding(layers::Workload& work) const;
  void describe_head(layers::Workload& work) const;
  /// Cost of this rank's part of one forward pass over `batch` rows of `seq` tokens: of one block, and of everything outside blocks.
  layers::Cost block_cost(int64_t layer, int64_t batch, int64_t seq, int64_t element_bytes) const;
  layers::Cost outer_cost(int64_t batch, int64_t seq, int64_t element_bytes) const;
  layers::Cost forward_cost(int64_t batch, int64_t seq, int64_t element_bytes) const;
  /// Forward plus backward, per token (convention: layers/cost.h).
  double training_flops_per_token(int64_t seq) const;
  /// Trained elements that one token's forward pass touches, embedding and head left out.
  virtual int64_t active_elements() const = 0;

 protected:
  virtual Stream embed(const at::Tensor& ids, const ForwardContext& context) = 0;
  virtual Stream block(int64_t layer, const Stream& stream, ForwardContext& context) = 0;
  virtual at::Tensor finish(const Stream& stream) = 0;

  // Declaring parameters; `name` is the full Hugging Face name.
  layers::Parameter& matrix(const std::string& name, tensor::Shape shape, tensor::Part part = {});
  layers::Parameter& vector(const std::string& name, int64_t size, double initial, tensor::Part part = {});
  /// Embedding, and the head unless it is the embedding; both cut by rows of the vocabulary.
  void declare_embedding();
  void declare_head();
  layers::Parameter& vocabulary_matrix(const char* name, layers::Parameter::Kind kind);
  /// This rank's part of a matrix whose rows (outputs) or columns (inputs) the tensor or tensor_sequence axis cuts; all of it without.
  tensor::Part cut_rows(int64_t rows, int64_t cols) const;
  tensor::Part cut_columns(int64_t rows, int64_t cols) const;
  tensor::Part cut_vector(int64_t size) const;
  /// How enter and leave look in a description; rows that there are between layers.
  layers::ActivationId describe_enter(layers::Workload& work, layers::ActivationId x, int64_t width) const;
  layers::ActivationId describe_leave(layers::Workload& work, layers::ActivationId partial) const;
  /// The table's rows of this rank's tokens; fp32 (fp64).
  layers::ActivationId describe_lookup(layers::Workload& work) const;
  /// Attention of this rank's heads, over the sequence axis if there is one.
  void describe_attention(layers::Workload& work, layers::ActivationId qkv, layers::ActivationId mixed, int64_t heads, int64_t kv_heads,
                          int64_t layer) const;
  int64_t rows_between(const layers::Workload& work) const {
    return layout_.tensor.shards_tokens ? work.tokens() / layout_.tensor.size : work.tokens();
  }
  /// Throws ConfigError when the tensor axis does not divide `value`, the setting model.<name>.
  void require_shares(const char* name, int64_t value) const;
  /// The same for heads, which the sequence axis may share out too.
  void require_heads() const;
  /// The embedding of this rank's tokens, as it is between layers; fp32 (fp64).
  at::Tensor embedded(const at::Tensor& ids, const ForwardContext& context) const;
  /// Whether this pass goes through the folded schedules of a tensor_sequence axis: all do but the new tokens of a generation, for which
  /// the weights stay where they are (layers/tensor_sequence/decoding.h).
  bool folds(const layers::Sequences& sequences) const { return layout_.tensor_sequence.is_on() && sequences.axis().is_on(); }
  /// Tokens as they are between layers -> all of them, and back (layers/tensor_axis.h).
  at::Tensor enter(const at::Tensor& x, const ForwardContext& context) const {
    return layout_.tensor.enter(x, context.sequences->batch(), context.sequences->seq());
  }
  at::Tensor leave(const at::Tensor& partial) const {
    const auto& folded = layout_.tensor_sequence;
    return folded.is_on() ? layers::TensorAxis{.rank = folded.rank, .size = folded.size, .group = folded.group}.leave(partial)
                          : layout_.tensor.leave(partial);
  }

  RoutingReplay routing_replay_;
  ModelConfig config_;
  Layout layout_;
  layers::ParameterList parameters_;
  layers::Parameter* embedding_ = nullptr;
  layers::Parameter* head_ = nullptr;  // the embedding when tied

 private:
  at::ScalarType dtype_ = at::kFloat;
  at::Device device_ = at::kCPU;
};

/// A model architecture. Adding one: a file with a Model subclass and a Family, and its line in families.cpp.
struct Family {
  std::string name;                                                     // in our configs
  std::string hugging_face_type;                                        // "model_type" of its config.json
  std::unique_ptr<Model> (*create)(const ModelConfig&, const Layout&);  // checks the config; allocates nothing
  ModelConfig (*from_hugging_face)(const nlohmann::json&);
  nlohmann::json (*to_hugging_face)(const ModelConfig&);
};

const std::vector<Family>& families();
std::vector<std::string> family_names();
const Family& family_named(const std::string& name);
/// Checks the sizes and declares the parameters; nothing is allocated yet. Throws ConfigError.
std::unique_ptr<Model> create_model(const ModelConfig& config, const Layout& layout = {});

}  // namespace ingot::models
