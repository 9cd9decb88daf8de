#include "plan/trace/pass_trace.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/work_scope.h"
#include "comm/recording_fabric.h"
#include "device/tracer.h"
#include "kernels/differentiable.h"
#include "layers/dtype.h"
#include "mesh/groups.h"
#include "plan/trace/pass_cutter.h"
#include "train/parallel_model.h"
#include "train/step.h"

namespace ingot::plan {
namespace {

// The axes that cut a pass. Experts may be spread over data ranks: then as few of these as they need.
mesh::ParallelConfig axes_of(const parallel::Layout& layout) {
  mesh::ParallelConfig p;
  const auto& sequence = layout.sequence;
  p.tensor = layout.tensor.size;
  p.sequence_parallel = layout.tensor.shards_tokens;
  p.tensor_sequence = layout.tensor_sequence.size;
  p.head_buckets = layout.tensor_sequence.head_buckets;
  p.context = layout.tensor_sequence.is_on() ? 1 : sequence.size;
  p.context_method = sequence.method->name;
  p.context_order = sequence.zigzag ? "zigzag" : "contiguous";
  p.state_method = sequence.states->name();
  p.expert = layout.experts.size;
  p.expert_tensor = layout.experts.slices;
  const int64_t others = p.tensor * p.context * p.tensor_sequence, experts = p.expert * p.expert_tensor;
  p.data = experts / std::gcd(experts, others);
  p.zero = 0;
  return p;
}

// Where chunks lie in order, the last rank attends to most keys.
int busiest_rank(const mesh::ParallelConfig& p) {
  const bool is_uneven = p.context_order == "contiguous" && p.context * p.tensor_sequence > 1;
  return static_cast<int>(is_uneven ? (p.context - 1) * p.tensor + (p.tensor_sequence - 1) : 0);
}

at::Tensor tokens_of(int64_t batch, int64_t seq, at::Device device) {
  return at::zeros({batch, seq}, at::TensorOptions().dtype(at::kLong).device(device));
}

int64_t stream_bytes(const models::Model& model, const PassShape& shape) {
  const auto& layout = model.layout();
  const int64_t tokens = shape.batch * shape.seq / layout.sequence.size / (layout.tensor.shards_tokens ? layout.tensor.size : 1);
  return tokens * (model.config().hidden + model.router_state_width()) * (shape.precision == "fp64" ? 8 : 4);
}

void run(models::Model& model, const PassShape& shape) {
  const auto& axis = model.layout().sequence;
  const int64_t own = shape.seq / axis.size;
  models::ForwardContext context;
  context.sequences = std::make_shared<layers::Sequences>(shape.batch, own, at::Tensor(), 0, model.device(), axis.schedule());
  const auto ids = tokens_of(shape.batch, own, model.device()), targets = ids.clone();
  if (!shape.learns) {
    const at::NoGradGuard no_grad;
    const base::WorkScope scope("forward");
    model.loss(ids, targets, 1, context);
    return;
  }
  train::ExpertCounter counter(model.config().layers);
  context.recompute = shape.recompute;
  context.observer = &counter;
  const auto loss = [&] {
    const base::WorkScope scope("forward");
    return model.loss(ids, targets, 1, context);
  }();
  kernels::backward({loss});
}

}  // namespace

double PassSegment::flops() const {
  double sum = 0;
  for (const auto& o : operations) sum += o.flops * static_cast<double>(o.calls);
  return sum;
}

StageSpan span_of(const models::Model& part) {
  const auto& stage = part.layout().stage;
  StageSpan span{.layers = {}, .has_embedding = stage.has_embedding(), .has_head = stage.has_head()};
  for (int64_t layer = 0; layer < part.config().layers; ++layer)
    if (stage.holds(layer)) span.layers.push_back(layer);
  return span;
}

const BlockPass& PassTrace::block(int64_t layer) const {
  const auto known = static_cast<int64_t>(blocks.size());
  return blocks[static_cast<size_t>(layer < known ? layer : known - period + (layer - known) % period)];
}

int64_t PassTrace::peak_bytes(const StageSpan& span) const {
  // What another stage sent lives until this one's backward pass is over.
  int64_t level = span.has_embedding ? 0 : stream_bytes, peak = level;
  const auto pass = [&](const PassSegment& segment) {
    peak = std::max(peak, level + segment.peak_bytes);
    level += segment.kept_bytes;
  };
  if (span.has_embedding) pass(embedding.forward);
  for (const int64_t layer : span.layers) pass(block(layer).forward);
  if (span.has_head) {
    pass(head.forward);
    pass(head.backward);
  } else {
    level += stream_bytes;  // the gradient of what it sent
  }
  for (auto layer = span.layers.rbegin(); layer != span.layers.rend(); ++layer) pass(block(*layer).backward);
  if (span.has_embedding) pass(embedding.backward);
  return peak;
}

int64_t PassTrace::kept_bytes(const StageSpan& span) const {
  int64_t level = span.has_embedding ? embedding.forward.kept_bytes : stream_bytes;
  for (const int64_t layer : span.layers) level += block(layer).forward.kept_bytes;
  return level;
}

PassTrace trace_inference(models::ModelConfig config, const InferenceShape& shape) {
  const auto begin = std::chrono::steady_clock::now();
  PassTrace result;
  result.period = models::block_period(config);
  config.layers = std::min(config.layers, 2 * result.period);
  const device::CountingDevice counting(shape.target);
  {
    const at::NoGradGuard no_grad;
    const auto model = models::create_model(config);
    model->allocate(layers::compute_dtype(shape.precision), counting.device());
    std::vector<models::LayerCache> caches(static_cast<size_t>(config.layers));
    const auto feed = [&](int64_t from, int64_t tokens) {
      models::ForwardContext context;
      context.sequences = std::make_shared<layers::Sequences>(shape.batch, tokens, at::Tensor(), from, counting.device());
      context.caches = &caches;
      const base::WorkScope scope("forward");
      const auto hidden = model->forward(tokens_of(shape.batch, tokens, counting.device()), context);
      model->logits(hidden.narrow(1, tokens - 1, 1));
    };
    if (shape.context > 0) feed(0, shape.context);
    device::Tracer tracer(counting.device());
    feed(shape.context, shape.tokens);
    const auto trace = tracer.finish();
    result.guessed = trace.guessed;
    cut(trace, config.layers, result);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

PassTrace trace_pass(const models::Model& part, const PassShape& shape) {
  const auto begin = std::chrono::steady_clock::now();
  PassTrace result;
  auto config = part.config();
  result.period = models::block_period(config);
  config.layers = std::min(config.layers, 2 * result.period);
  const auto axes = axes_of(part.layout());
  const auto ranks = static_cast<int>(axes.data * axes.context * axes.tensor * axes.tensor_sequence);
  const device::CountingDevice counting(shape.target, shape.expert_load);
  const auto world = comm::recorded_world(busiest_rank(axes), ranks);
  mesh::Groups groups(*world, axes);
  {
    const auto model = models::create_model(config, train::layout_of(groups.mesh(), axes, config, &groups));
    model->allocate(layers::compute_dtype(shape.precision), counting.device());
    result.stream_bytes = stream_bytes(*model, shape);
    if (shape.learns) model->parameters().allocate_gradients();
    device::Tracer tracer(counting.device());
    run(*model, shape);
    const auto trace = tracer.finish();
    result.guessed = trace.guessed;
    cut(trace, config.layers, result);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

const PassTrace& PassTraces::of(const models::Model& part, const PassShape& s) {
  auto config = part.config();
  const auto p = axes_of(part.layout());
  config.layers = std::min(config.layers, 2 * models::block_period(config));
  const auto key =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} | {} {} {} {} {} {} {}", p.tensor, p.sequence_parallel, p.tensor_sequence,
                  p.head_buckets, p.context, p.context_method, p.context_order, p.state_method, p.expert, p.expert_tensor, p.data, s.batch,
                  s.seq, s.precision, static_cast<int>(s.recompute), static_cast<int>(s.target), s.expert_load, s.learns);
  auto& alike = known_[key];
  for (const auto& [of, trace] : alike)
    if (of == config) return *trace;
  return *alike.emplace_back(config, std::make_unique<PassTrace>(trace_pass(part, s))).second;
}

}  // namespace ingot::plan
