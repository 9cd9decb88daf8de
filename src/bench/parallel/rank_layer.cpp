#include "bench/parallel/rank_layer.h"

#include <ATen/core/grad_mode.h>

#include <cmath>

#include "base/work_scope.h"
#include "device/virtual_device.h"
#include "kernels/differentiable.h"
#include "layers/dtype.h"
#include "train/parallel_model.h"

namespace ingot::bench {
namespace {

using layers::Parameter;
using mesh::Axis;
using schedule::Layer;
using schedule::Layout;
using schedule::Method;

models::ModelConfig config_of(const Layout& layout) {
  const auto& s = layout.sizes;
  models::ModelConfig config{.family = "llama",
                             .layers = layout.layer == Layer::block ? layout.blocks + 2 : 1,
                             .hidden = s.hidden,
                             .vocab_size = 4 * layout.ranks,
                             .heads = s.heads,
                             .kv_heads = layout.is_linear() ? s.heads : s.kv_heads,
                             .head_dim = s.head_dim,
                             .ffn = s.ffn};
  if (layout.is_linear()) {
    config.mixers = {"linear"};
    config.linear_attention = "basic";
    config.feature_map = "identity";
    config.linear_value_dim = s.value_dim;
    config.short_convolution = 0;
    config.linear_output_gate = false;
  }
  return config;
}

// Tells the buckets how far a pass has come.
class BucketHooks : public models::LayerHooks {
 public:
  explicit BucketHooks(parallel::Buckets& buckets) : buckets_(buckets) {}
  void before_forward(int64_t layer) override { buckets_.before_forward(layer); }
  void after_forward(int64_t layer) override { buckets_.after_forward(layer); }
  void before_backward(int64_t layer) override { buckets_.before_backward(layer); }
  void after_backward(int64_t layer) override { buckets_.after_backward(layer); }

 private:
  parallel::Buckets& buckets_;
};

}  // namespace

mesh::ParallelConfig axes_of(const Layout& layout) {
  mesh::ParallelConfig c;
  c.zero = layout.method == Method::fsdp_cp ? 3 : 0;
  c.sequence_parallel = layout.method == Method::megatron_sp;
  if (layout.method == Method::tsp) {
    c.tensor_sequence = layout.ranks;
  } else {
    c.tensor = layout.tensor_size();
    c.context = layout.sequence_size();
  }
  c.head_buckets = layout.head_buckets;
  c.context_method = layout.method == Method::ring ? "ring" : layout.method == Method::ulysses ? "ulysses" : "allgather";
  c.context_order = layout.zigzag && !layout.is_linear() ? "zigzag" : "contiguous";
  c.state_method = layout.method == Method::lasp1 ? "lasp1" : layout.method == Method::zeco ? "zeco" : "lasp2";
  return c;
}

RankLayer::RankLayer(const Layout& what, comm::World& world, at::Device device)
    : what_(what),
      axes_(axes_of(what)),
      groups_(world, axes_),
      device_(device),
      dtype_(layers::precision_named(what.sizes.dtype).dtype),
      config_(config_of(what)),
      layout_(train::layout_of(groups_.mesh(), axes_, config_, &groups_)) {
  const bool is_block = what.layer == Layer::block;
  is_block ? make_block() : make_part();
  fill();
  if (world.size() > 1 && (what.syncs_gradients || axes_.zero == 3)) {
    buckets_ = std::make_unique<parallel::Buckets>(
        parameters(), [this](const Parameter& p) -> comm::Group& { return sum_group(p); },
        parallel::Buckets::Options{.bucket_bytes = int64_t{1} << 40, .zero = static_cast<int>(axes_.zero)});
    hooks_ = std::make_unique<BucketHooks>(*buckets_);
  }
  const auto& s = what.sizes;
  const int64_t seq = s.seq / layout_.sequence.size;
  context_.sequences = std::make_shared<layers::Sequences>(s.batch, seq, at::Tensor(), 0, device, layout_.sequence.schedule());
  context_.recompute = what.recomputes ? models::Recompute::full : models::Recompute::none;
  context_.hooks = hooks_.get();
  const auto wide = dtype_ == at::kDouble ? at::kDouble : at::kFloat;
  const bool is_cut = layout_.tensor.is_on() && layout_.tensor.shards_tokens;  // between layers
  const std::vector<int64_t> shape =
      is_cut ? std::vector{int64_t{1}, s.batch * seq / layout_.tensor.size, s.hidden} : std::vector{s.batch, seq, s.hidden};
  x_ = at::empty(shape, at::TensorOptions().dtype(is_block ? wide : dtype_).device(device));
  grad_ = at::empty_like(x_);
  if (!device::is_counting(x_)) x_.normal_(), grad_.normal_();
  x_.set_requires_grad(true);
}

RankLayer::~RankLayer() = default;

void RankLayer::make_block() {
  last_layer_ = what_.blocks;
  layout_.stage = {.rank = 1, .size = 3, .pieces = {{0, 1}, {1, 1 + last_layer_}, {1 + last_layer_, 2 + last_layer_}}};
  model_ = models::create_model(config_, layout_);
  model_->allocate(dtype_, device_);
}

void RankLayer::make_part() {
  block_ = std::make_unique<models::BlockContext>(config_, layout_, list_);
  block_->set_dtype(dtype_);
  const auto parts = models::layer_parts(config_).front();
  list_.begin_layer(0);
  if (what_.layer == Layer::mlp) {
    feed_forward_ = models::make_feed_forward(parts, *block_, 0, false);
    feed_forward_->declare("");
  } else {
    mixer_ = models::make_mixer(parts, *block_, 0);
    mixer_->declare("");
  }
  list_.allocate(dtype_, device_);
}

// Any values that neither grow nor vanish.
void RankLayer::fill() {
  if (device::is_counting(device_)) return;
  const at::NoGradGuard no_grad;
  for (const auto& p : parameters().all()) {
    if (p->shape.size() == 1) p->value.fill_(1);
    else p->value.normal_(0, 1 / std::sqrt(static_cast<double>(p->shape[1])));
  }
}

comm::Group& RankLayer::sum_group(const Parameter& p) {
  auto axes = p.part.empty() ? groups_.mesh().token_axes() : std::vector{Axis::data, Axis::context};
  if (p.part.empty() && layout_.tensor.is_on() && layout_.tensor.shards_tokens) axes.push_back(Axis::tensor);
  return groups_.along(axes);
}

at::Tensor RankLayer::forward() {
  const base::WorkScope scope("forward");
  at::Tensor out;
  if (model_) {
    out = model_->run_chunk(0, {}, {x_, {}}, context_).residual;
  } else {
    if (buckets_) buckets_->before_forward(0);
    out = mixer_ ? mixer_->mix(x_, context_) : feed_forward_->forward(x_, {}, context_).branch;
    if (buckets_) buckets_->after_forward(0);
  }
  if (axes_.zero == 3 && buckets_) buckets_->release(last_layer_);  // as of layers that have others behind them
  return out;
}

void RankLayer::backward(const at::Tensor& out) {
  if (buckets_) {
    buckets_->begin_step();
    buckets_->begin_backward(true);
    buckets_->before_backward(last_layer_);
  }
  kernels::backward({out}, {grad_});
  parameters().collect_gradients();
  if (buckets_) {
    if (!model_) buckets_->after_backward(0);
    buckets_->finish_backward();
    buckets_->finish_step();
  }
  parameters().drop_gradients();
  x_.mutable_grad().reset();
}

}  // namespace ingot::bench
