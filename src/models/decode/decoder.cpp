#include "models/decode/decoder.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "models/decode/join.h"

namespace ingot::models::decode {
namespace {

// Parts without steps of their own: rows of fp32 in, rows of fp32 out.
template <class Body>
void run_in_dtype(const float* in, float* out, int64_t rows, int64_t hidden, at::ScalarType dtype, const Body& body) {
  const auto x = at::from_blob(const_cast<float*>(in), {1, rows, hidden}, at::kFloat).to(dtype);
  at::from_blob(out, {1, rows, hidden}, at::kFloat).copy_(body(x));
}

class MixStep final : public Step {
 public:
  MixStep(const TokenMixer& mixer, at::ScalarType dtype) : mixer_(mixer), dtype_(dtype) {}
  bool is_alone() const override { return true; }
  void run(Pass& pass, const Worker&) override {
    run_in_dtype(pass.normed(), pass.branch(), pass.rows(), pass.hidden, dtype_,
                 [&](const at::Tensor& x) { return mixer_.mix(x, *pass.context); });
  }

 private:
  const TokenMixer& mixer_;
  const at::ScalarType dtype_;
};

class FeedForwardStep final : public Step {
 public:
  FeedForwardStep(const FeedForward& part, at::ScalarType dtype, std::shared_ptr<at::Tensor> state)
      : part_(part), dtype_(dtype), state_(std::move(state)) {}
  bool is_alone() const override { return true; }
  void run(Pass& pass, const Worker&) override {
    run_in_dtype(pass.normed(), pass.branch(), pass.rows(), pass.hidden, dtype_, [&](const at::Tensor& x) {
      auto result = part_.forward(x, *state_, *pass.context);
      if (result.router_state.defined()) *state_ = result.router_state;
      return result.branch;
    });
  }

 private:
  const FeedForward& part_;
  const at::ScalarType dtype_;
  const std::shared_ptr<at::Tensor> state_;  // of the routers so far
};

}  // namespace

bool Decoder::takes(const Model& model) {
  const auto& layout = model.layout();
  return model.device().is_cpu() && (model.dtype() == at::kFloat || model.dtype() == at::kBFloat16) && !model.config().bidirectional &&
         !layout.tensor.is_on() && !layout.tensor_sequence.is_on() && !layout.sequence.is_on() && !layout.stage.is_on() &&
         !layout.experts.is_on() && is_plain(*model.embedding_) && is_plain(*model.head_);
}

Decoder::Decoder(Model& model, kernels::WeightFormat format, int workers) : model_(model), program_(format), team_(workers) {
  const at::NoGradGuard no_grad;
  pass_.hidden = model.config().hidden;
  pass_.words.resize(static_cast<size_t>(workers));
  pass_.word_scales.resize(static_cast<size_t>(workers));
  head_ = &program_.matrix(*model.head_);
  const auto& c = model.config();
  const auto weight = [](const Norm& norm) { return norm.is_there() ? norm.weight().contiguous() : at::Tensor(); };
  Join join{.has_branch = false, .behind = {}, .before = {}, .eps = c.norm_eps};
  const auto state = std::make_shared<at::Tensor>();
  bool has_own_routers = false, has_other_routers = false;
  const auto has_steps = [&](const auto& part) {
    const size_t before = program_.steps().size();
    const bool has = part.add_decode_steps(program_);
    if (!has) program_.forget_behind(before), needs_context_ = true;
    return has;
  };
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const auto& block = model.at(layer);
    join.before = weight(block.before_mixer);
    program_.add<JoinStep>(join);
    if (!has_steps(*block.mixer)) program_.add<MixStep>(*block.mixer, model.dtype());
    join = {.behind = weight(block.behind_mixer),
            .scale = c.residual_scale,
            .residual = block.after_mixer.values(),
            .before = weight(block.before_feed_forward),
            .eps = c.norm_eps};
    program_.add<JoinStep>(join);
    const bool is_own = has_steps(*block.feed_forward);
    if (!is_own) program_.add<FeedForwardStep>(*block.feed_forward, model.dtype(), state);
    if (block.feed_forward->router_state_width() > 0) (is_own ? has_own_routers : has_other_routers) = true;
    join = {.behind = weight(block.behind_feed_forward),
            .scale = c.residual_scale,
            .residual = block.after_feed_forward.values(),
            .before = {},
            .eps = c.norm_eps};
  }
  if (has_own_routers && has_other_routers)
    throw base::ConfigError("routers pass a state on, and some of them have adapters; merge those first");
  join.before = weight(model.norm_);
  program_.add<JoinStep>(join);
}

Decoder::~Decoder() = default;

const float* Decoder::run(std::span<const layers::Sequences::Length> lengths, std::span<const int64_t> ids,
                          const std::vector<std::vector<LayerCache>*>& caches, std::span<const int64_t> rows) {
  const at::NoGradGuard no_grad;
  ++pass_.number;
  pass_.tokens.clear();
  for (size_t sequence = 0; sequence < lengths.size(); ++sequence) {
    const auto first = static_cast<int64_t>(pass_.tokens.size());
    for (int64_t i = 0; i < lengths[sequence].tokens; ++i)
      pass_.tokens.push_back({.sequence = static_cast<int64_t>(sequence),
                              .position = lengths[sequence].offset + i,
                              .first = first,
                              .length = lengths[sequence].offset + lengths[sequence].tokens});
  }
  pass_.caches = caches;
  ForwardContext context;
  if (needs_context_) {
    context.sequences = layers::Sequences::side_by_side({lengths.begin(), lengths.end()}, at::kCPU);
    context.caches = caches;
    pass_.context = &context;
  }
  for (const auto slot : {Slot::residual, Slot::normed, Slot::branch}) pass_.work.floats(slot, pass_.rows() * pass_.hidden);
  embed(ids);
  for (const auto& step : program_.steps()) step->prepare(pass_);
  run_steps();
  return logits(rows);
}

void Decoder::embed(std::span<const int64_t> ids) {
  const auto& table = model_.embedding_->value;
  const int64_t hidden = pass_.hidden;
  float* out = pass_.residual();
  for (const int64_t id : ids) {
    if (table.scalar_type() == at::kFloat) {
      std::memcpy(out, table.const_data_ptr<float>() + id * hidden, static_cast<size_t>(hidden) * sizeof(float));
    } else {
      const auto* row = table.const_data_ptr<at::BFloat16>() + id * hidden;
      for (int64_t i = 0; i < hidden; ++i) out[i] = row[i];
    }
    out += hidden;
  }
  auto all = at::from_blob(pass_.residual(), {1, pass_.rows(), hidden}, at::kFloat);
  if (model_.embedding_scale_ != 1) all.mul_(model_.embedding_scale_);
  const auto scaled = model_.input_scale_(all);
  if (!scaled.is_same(all)) all.copy_(scaled);
}

void Decoder::run_steps() {
  const auto& steps = program_.steps();
  for (size_t begin = 0, end; begin < steps.size(); begin = end) {
    end = begin + 1;
    if (steps[begin]->is_alone()) {
      steps[begin]->run(pass_, {.index = 0, .count = 1, .team = nullptr});
      continue;
    }
    while (end < steps.size() && !steps[end]->is_alone()) ++end;
    team_.run([&](int index) {
      const Worker worker{.index = index, .count = team_.workers(), .team = &team_};
      for (size_t i = begin; i < end; ++i) {
        steps[i]->run(pass_, worker);
        if (i + 1 < end) worker.wait_for_all();
      }
    });
  }
}

const float* Decoder::logits(std::span<const int64_t> rows) {
  const auto count = static_cast<int64_t>(rows.size()), vocabulary = head_->outputs;
  if (logits_.size() < static_cast<size_t>(count * vocabulary)) logits_.resize(static_cast<size_t>(count * vocabulary));
  if (count == 0) return logits_.data();
  const double cap = model_.config().logit_cap;
  team_.run([&](int index) {
    const Worker worker{.index = index, .count = team_.workers(), .team = &team_};
    const Product product{head_, logits_.data(), vocabulary, nullptr};
    multiply(pass_, {pass_.normed(), pass_.hidden, count, rows.data()}, {&product, 1}, worker);
    if (cap == 0) return;
    const auto own = own_share(vocabulary, worker);
    for (int64_t row = 0; row < count; ++row)
      for (int64_t i = own.begin; i < own.end; ++i) {
        float& x = logits_[static_cast<size_t>(row * vocabulary + i)];
        x = static_cast<float>(cap) * std::tanh(x / static_cast<float>(cap));
      }
  });
  return logits_.data();
}

}  // namespace ingot::models::decode
