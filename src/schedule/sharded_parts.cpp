// Attention and the gated MLP over a tensor axis, a sequence axis, or both (tp, megatron-sp, sp, tp+sp, fsdp+cp, ring, ulysses, and linear
// attention's lasp1, lasp2, zeco): the parts differ in where tokens mix (sequence_core.h) and where weights are (sharded_weights.h).
#include "schedule/sequence_core.h"
#include "schedule/sharded_weights.h"

namespace ingot::schedule {
namespace {

// How a layer is entered and left over the tensor axis (layers/tensor_axis.h).
class TensorEdge {
 public:
  explicit TensorEdge(Script& script)
      : script_(script),
        shards_tokens_(script.layout().method == Method::megatron_sp),
        bytes_(script.sizes().tokens() / script.layout().sequence_size() * script.sizes().hidden * script.e()) {}

  Buffer enter(Buffer x) { return shards_tokens_ ? script_.gather("gather tokens", script_.tensor_group(), bytes_, x) : x; }
  Buffer leave(Buffer partial) { return summed(partial); }
  Buffer enter_backward(Buffer partial) { return summed(partial); }
  Buffer leave_backward(Buffer grad) {
    return shards_tokens_ ? script_.gather("gather gradients", script_.tensor_group(), bytes_, grad) : grad;
  }

 private:
  Buffer summed(Buffer partial) {
    if (shards_tokens_) return script_.scatter_sum("sum over heads", script_.tensor_group(), bytes_, partial);
    script_.collective("sum over heads", Kind::all_reduce, script_.tensor_group(), bytes_, {partial}, {partial});
    return partial;
  }
  Script& script_;
  bool shards_tokens_;
  int64_t bytes_;
};

std::unique_ptr<SequenceCore> core_for(Script& script) {
  const auto& layout = script.layout();
  const bool is_state_method = layout.method == Method::lasp1 || layout.method == Method::lasp2 || layout.method == Method::zeco;
  if (is_state_method || (layout.is_linear() && layout.sequence_size() == 1)) return state_core(script);
  if (layout.sequence_size() == 1) return local_core(script);
  switch (layout.method) {
    case Method::ring: return ring_core(script);
    case Method::ulysses: return ulysses_core(script);
    default: return allgather_core(script);
  }
}

class ShardedAttention : public Part {
 public:
  explicit ShardedAttention(Script& script)
      : script_(script),
        edge_(script),
        sizes_(script),
        weights_(script, script.sizes().hidden * (qkv_width() + out_width())),
        core_(core_for(script)) {}

  void prefetch() override { weights_.prefetch(); }

  Buffer forward(Buffer x, const Meanwhile& meanwhile) override {
    const int64_t rows = sizes_.rows(), hidden = script_.sizes().hidden, e = script_.e();
    x_ = edge_.enter(x);
    const auto packed = script_.product("project q k v", rows, hidden, qkv_width(), {x_, weights_.use()}, rows * qkv_width() * e);
    Mixed in{script_.buffer(sizes_.q_bytes), script_.buffer(sizes_.kv_bytes)};
    script_.list().add("split, rotate", Stream::compute, Move{2 * rows * qkv_width() * e}, {packed}, {in.q, in.kv});
    attended_ = core_->forward(in, meanwhile);
    const auto out = script_.product("project out", rows, out_width(), hidden, {attended_, weights_.use()}, rows * hidden * e);
    weights_.release();
    return edge_.leave(out);
  }

  Buffer backward(Buffer grad_out, const Meanwhile& meanwhile) override {
    const int64_t rows = sizes_.rows(), hidden = script_.sizes().hidden, e = script_.e();
    const auto grad = edge_.leave_backward(grad_out);
    const auto grad_attended = script_.product("out, to its input", rows, hidden, out_width(), {grad, weights_.use()}, sizes_.out_bytes);
    script_.product_into("out, to its weight", hidden, rows, out_width(), {grad, attended_}, weights_.gradients());
    const auto grads = core_->backward(grad_attended, meanwhile);
    const auto packed = script_.compute("rotate back", Move{2 * rows * qkv_width() * e}, {grads.q, grads.kv}, rows * qkv_width() * e);
    const auto grad_x = script_.product("q k v, to x", rows, qkv_width(), hidden, {packed, weights_.use()}, rows * hidden * e);
    script_.product_into("q k v, to their weights", qkv_width(), rows, hidden, {packed, x_}, weights_.gradients());
    weights_.release();
    const auto left = edge_.enter_backward(grad_x);
    weights_.finish_gradients();
    return left;
  }

 private:
  int64_t qkv_width() const { return sizes_.heads * sizes_.key_dim + sizes_.kv_heads * (sizes_.key_dim + sizes_.value_dim); }
  int64_t out_width() const { return sizes_.heads * sizes_.value_dim; }

  Script& script_;
  TensorEdge edge_;
  CoreSizes sizes_;
  ShardedWeights weights_;
  std::unique_ptr<SequenceCore> core_;
  Buffer x_ = -1, attended_ = -1;
};

class ShardedMlp : public Part {
 public:
  explicit ShardedMlp(Script& script)
      : script_(script),
        edge_(script),
        rows_(script.sizes().tokens() / script.layout().sequence_size()),
        ffn_(script.sizes().ffn / script.layout().tensor_size()),
        weights_(script, 3 * script.sizes().hidden * ffn_) {}

  void prefetch() override { weights_.prefetch(); }

  Buffer forward(Buffer x, const Meanwhile& meanwhile) override {
    const int64_t hidden = script_.sizes().hidden, e = script_.e();
    x_ = edge_.enter(x);
    const auto weights = weights_.use();
    meanwhile();
    gate_up_ = script_.product("gate, up", rows_, hidden, 2 * ffn_, {x_, weights}, rows_ * 2 * ffn_ * e);
    middle_ = script_.compute("swiglu", Move{3 * rows_ * ffn_ * e}, {gate_up_}, rows_ * ffn_ * e);
    const auto out = script_.product("down", rows_, ffn_, hidden, {middle_, weights}, rows_ * hidden * e);
    weights_.release();
    return edge_.leave(out);
  }

  Buffer backward(Buffer grad_out, const Meanwhile& meanwhile) override {
    const int64_t hidden = script_.sizes().hidden, e = script_.e();
    const auto grad = edge_.leave_backward(grad_out);
    const auto weights = weights_.use();
    meanwhile();
    const auto grad_middle = script_.product("down, to its input", rows_, hidden, ffn_, {grad, weights}, rows_ * ffn_ * e);
    script_.product_into("down, to its weight", hidden, rows_, ffn_, {grad, middle_}, weights_.gradients());
    const auto grad_gate_up = script_.compute("swiglu back", Move{5 * rows_ * ffn_ * e}, {grad_middle, gate_up_}, rows_ * 2 * ffn_ * e);
    const auto grad_x = script_.product("gate, up, to x", rows_, 2 * ffn_, hidden, {grad_gate_up, weights}, rows_ * hidden * e);
    script_.product_into("gate, up, to their weights", 2 * ffn_, rows_, hidden, {grad_gate_up, x_}, weights_.gradients());
    weights_.release();
    const auto left = edge_.enter_backward(grad_x);
    weights_.finish_gradients();
    return left;
  }

 private:
  Script& script_;
  TensorEdge edge_;
  int64_t rows_, ffn_;
  ShardedWeights weights_;
  Buffer x_ = -1, gate_up_ = -1, middle_ = -1;
};

}  // namespace

std::unique_ptr<Part> sharded_attention(Script& script) { return std::make_unique<ShardedAttention>(script); }
std::unique_ptr<Part> sharded_mlp(Script& script) { return std::make_unique<ShardedMlp>(script); }

}  // namespace ingot::schedule
