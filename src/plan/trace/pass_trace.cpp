#include "plan/trace/pass_trace.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/settings.h"
#include "base/work_scope.h"
#include "comm/recording_fabric.h"
#include "device/tracer.h"
#include "kernels/cpu/isa.h"
#include "kernels/differentiable.h"
#include "kernels/gemm_backend.h"
#include "layers/dtype.h"
#include "mesh/groups.h"
#include "plan/trace/pass_cutter.h"
#include "plan/trace/trace_store.h"
#include "train/parallel_model.h"
#include "train/step.h"

namespace ingot::plan {
namespace {

constexpr int64_t kPeriodsOfNeighbours = 5;

// Buckets send what neighbours made, what is offloaded goes while the next block runs; FP8 leaves the first and the last block as they are.
bool ends_differ(const PassShape& shape) {
  return shape.zero >= 2 || shape.offloads_activations || layers::precision_named(shape.precision).quantization;
}

// As many blocks as there are kinds of them, twice; more where the ends are not like the middle.
models::ModelConfig traced_part_of(models::ModelConfig config, const PassShape& shape) {
  config.layers = std::min(config.layers, (ends_differ(shape) ? kPeriodsOfNeighbours : 2) * models::block_period(config));
  return config;
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

void run(models::Model& model, const PassShape& shape, models::LayerHooks* hooks, parallel::Buckets* buckets) {
  const auto& axis = model.layout().sequence;
  const int64_t own = shape.seq / axis.size;
  models::ForwardContext context;
  context.sequences = std::make_shared<layers::Sequences>(shape.batch, own, at::Tensor(), 0, model.device(), axis.schedule());
  const auto ids = tokens_of(shape.batch, own, model.device()), targets = ids.clone();
  context.hooks = hooks;
  if (shape.weighs_losses) context.weigh = [](const at::Tensor& losses) { return layers::Objective{losses.sum(), losses}; };
  if (!shape.learns) {
    const at::NoGradGuard no_grad;
    const base::WorkScope scope("forward");
    model.loss(ids, targets, 1, context);
    return;
  }
  train::ExpertCounter counter(model.blocks(), model.config().expert_capacity > 0);
  context.drops_tokens = true;
  context.further = model.further_like(ids);
  context.learns_drafts = true;
  context.recompute = shape.recompute;
  if (shape.offloads_activations)
    context.offload = std::make_shared<layers::ActivationOffload>(std::make_shared<device::HostStash>(model.device()));
  context.observer = &counter;
  if (buckets) buckets->begin_backward(/*is_last=*/true);
  const auto loss = [&] {
    const base::WorkScope scope("forward");
    return model.loss(ids, targets, 1, context);
  }();
  kernels::backward({loss});
  if (!buckets) return;
  model.parameters().collect_gradients();
  buckets->finish_backward();
  buckets->finish_step();
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

void PassTrace::visit(const StageSpan& span, const std::function<void(const BlockPass&)>& with) const {
  if (span.has_embedding) with(embedding);
  for (size_t i = 0; i < span.layers.size(); ++i) with(block(span, i));
  if (span.has_head) with(head);
}

// What a bucket's sum and the next weights do in a block depends on its neighbours: the ends of a stage are not like its middle.
const BlockPass& PassTrace::block(const StageSpan& span, size_t i) const {
  const auto known = static_cast<int64_t>(blocks.size()), count = static_cast<int64_t>(span.layers.size()), at = static_cast<int64_t>(i);
  const int64_t layer = span.layers[i];
  if (!has_neighbours || known < kPeriodsOfNeighbours * period || known == count) return block(layer);
  // What is gathered next is that of the block after the next: two from each end are by themselves.
  const int64_t from = at < period                ? 0
                       : at < 2 * period          ? period
                       : at + period >= count     ? known - period
                       : at + 2 * period >= count ? known - 2 * period
                                                  : 2 * period;
  return blocks[static_cast<size_t>(from + layer % period)];
}

int64_t PassTrace::peak_bytes(const StageSpan& span) const {
  // What another stage sent lives until this one's backward pass is over.
  int64_t level = span.has_embedding ? 0 : stream_bytes, peak = level;
  const auto pass = [&](const PassSegment& segment) {
    peak = std::max(peak, level + segment.peak_bytes);
    level += segment.kept_bytes;
  };
  if (span.has_embedding) pass(embedding.forward);
  const size_t count = span.layers.size();
  for (size_t i = 0; i < count; ++i) pass(block(span, i).forward);
  if (span.has_head) {
    pass(head.forward);
    pass(head.backward);
  } else {
    level += stream_bytes;  // the gradient of what it sent
  }
  for (size_t i = count; i-- > 0;) pass(block(span, i).backward);
  if (span.has_embedding) pass(embedding.backward);
  return peak;
}

int64_t PassTrace::kept_bytes(const StageSpan& span) const {
  int64_t level = span.has_embedding ? embedding.forward.kept_bytes : stream_bytes;
  for (size_t i = 0; i < span.layers.size(); ++i) level += block(span, i).forward.kept_bytes;
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
    model->allocate(layers::precision_named(shape.precision), counting.device());
    std::vector<models::LayerCache> caches(static_cast<size_t>(config.layers));
    const auto feed = [&](int64_t from, int64_t tokens) {
      models::ForwardContext context;
      context.sequences = std::make_shared<layers::Sequences>(shape.batch, tokens, at::Tensor(), from, counting.device());
      context.caches = {&caches};
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
  const auto config = traced_part_of(part.config(), shape);
  result.period = models::block_period(config);
  result.has_neighbours = ends_differ(shape);
  auto axes = axes_of(part.layout());
  if (shape.zero >= 2) {
    axes.zero = shape.zero;
    axes.data = std::lcm(std::max<int64_t>(1, shape.replicas / axes.context), axes.data);
    axes.bucket_mib = traced_bucket_mib(shape.bucket_bytes, shape.target);
  }
  const auto ranks = static_cast<int>(axes.data * axes.context * axes.tensor * axes.tensor_sequence);
  const device::CountingDevice counting(shape.target, shape.expert_load);
  const auto world = comm::recorded_world(busiest_rank(axes), ranks);
  mesh::Groups groups(*world, axes);
  {
    std::unique_ptr<models::Model> alone;
    std::unique_ptr<train::ParallelModel> shared;
    if (shape.zero >= 2 && ranks > 1) {
      // What it updates with does not matter here; AdamW is the quickest to set up.
      shared = std::make_unique<train::ParallelModel>(train::TrainingSetup{.model = config,
                                                                           .optimizer = {.name = "adamw"},
                                                                           .parallel = axes,
                                                                           .precision = shape.precision,
                                                                           .device = counting.device(),
                                                                           .is_reproducible = shape.is_reproducible,
                                                                           .is_stage = shape.is_stage},
                                                      groups);
    } else {
      alone = models::create_model(config, train::layout_of(groups.mesh(), axes, config, &groups));
      alone->allocate(layers::precision_named(shape.precision), counting.device());
      if (shape.learns) alone->parameters().allocate_gradients();
    }
    auto& model = shared ? shared->model() : *alone;
    auto* buckets = shared ? shared->buckets() : nullptr;
    result.stream_bytes = stream_bytes(model, shape);
    if (buckets) buckets->begin_step();
    device::Tracer tracer(counting.device());
    run(model, shape, shared ? shared->step().hooks() : nullptr, buckets);
    const auto trace = tracer.finish();
    result.guessed = trace.guessed;
    cut(trace, config.layers, result);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

// What a trace on disk depends on besides the program: `key`, the model, and the kernels of a machine that is its own target. Empty where
// settings do not say all of the model.
static std::string stored_key(const char* kind, const std::string& key, models::ModelConfig config) {
  if (!trace_store()) return {};
  base::SettingsTable settings, of_copy;
  models::ModelConfig copy;
  models::declare_settings(settings, config);
  models::declare_settings(of_copy, copy);
  const auto text = settings.dump_toml();
  of_copy.load_toml(text, "a model's own settings");
  if (!(copy == config)) return {};
  return fmt::format("{}\n{}\ntorch {}, {}, {}, pairs of bf16 {}, {} threads\n{}", kind, key, TORCH_VERSION,
                     kernels::cpu::name(kernels::cpu::best_isa()), kernels::name_of(kernels::gemm_backend()),
                     kernels::cpu::name(kernels::cpu::pair_unit_of_matrices()), at::get_num_threads(), text);
}

template <class Read, class Make>
static auto kept_or(const std::string& key, const Read& read, const Make& make) {
  auto* store = key.empty() ? nullptr : trace_store();
  if (store)
    if (auto kept = (store->*read)(key)) return std::move(*kept);
  auto made = make();
  if (store) store->keep(key, made);
  return made;
}

const PassTrace& PassTraces::of(const models::Model& part, const PassShape& s) {
  const auto config = traced_part_of(part.config(), s);
  const auto p = axes_of(part.layout());
  auto key = fmt::format("{} {} {} {} {} {} {} {} {} {} {} | {} {} {} {} {} {} {} {} {}", p.tensor, p.sequence_parallel, p.tensor_sequence,
                         p.head_buckets, p.context, p.context_method, p.context_order, p.state_method, p.expert, p.expert_tensor, p.data,
                         s.batch, s.seq, s.precision, static_cast<int>(s.recompute), s.offloads_activations, static_cast<int>(s.target),
                         s.expert_load, s.learns, s.weighs_losses);
  if (s.zero >= 2) key += fmt::format(" | {} {} {} {} {}", s.zero, s.replicas, s.bucket_bytes, s.is_stage, s.is_reproducible);
  auto& alike = known_[key];
  for (const auto& [of, trace] : alike)
    if (of == config) return *trace;
  auto trace = kept_or(stored_key("pass", key, config), &TraceStore::pass, [&] { return trace_pass(part, s); });
  return *alike.emplace_back(config, std::make_unique<PassTrace>(std::move(trace))).second;
}

const UpdateTrace& PassTraces::update_of(const models::Model& part, const UpdateShape& s) {
  const auto p = axes_of(part.layout());
  const auto& stage = part.layout().stage;
  auto optimizer = s.optimizer;
  base::SettingsTable settings;
  optim::declare_settings(settings, optimizer);
  const auto key = fmt::format("{} {} {} {} {} | {} {} {} | {} {} {} {} {} {}\n{}", p.tensor, p.sequence_parallel, p.tensor_sequence,
                               p.expert, p.expert_tensor, stage.rank, stage.size, stage.chunks(), s.precision, s.replicas, s.zero,
                               s.bucket_bytes, static_cast<int>(s.target), s.is_reproducible, settings.dump_toml());
  auto& alike = updates_[key];
  for (const auto& [of, trace] : alike)
    if (of == part.config()) return *trace;
  auto trace = kept_or(stored_key("update", key, part.config()), &TraceStore::update, [&] { return trace_update(part, s); });
  return *alike.emplace_back(part.config(), std::make_unique<UpdateTrace>(std::move(trace))).second;
}

}  // namespace ingot::plan
