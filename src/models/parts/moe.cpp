#include "models/parts/moe.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "layers/experts.h"
#include "layers/linear.h"
#include "layers/recompute.h"
#include "models/decode/feed_forward.h"

namespace ingot::models {

Moe::Moe(const BlockContext& block, int64_t layer, std::unique_ptr<Router> router, const Options& options)
    : FeedForward(block, layer), options_(options), router_(std::move(router)) {
  const auto& c = config();
  const auto& own = layout().experts;
  if (c.top_k > c.experts) throw base::ConfigError("model.top_k = {} is more than model.experts = {}", c.top_k, c.experts);
  if (c.expert_capacity > 0 && c.skip_output != "zero")
    throw base::ConfigError("model.expert_capacity = {} drops tokens, which model.skip_output = {} would not", c.expert_capacity,
                            c.skip_output);
  if (c.mlp_bias) throw base::ConfigError("model.mlp_bias = true: experts have no such biases");
  if (c.experts % own.size != 0) throw base::ConfigError("parallel.expert = {} does not divide model.experts = {}", own.size, c.experts);
  if (c.expert_ffn % own.slices != 0)
    throw base::ConfigError("parallel.expert_tensor = {} does not divide model.expert_ffn = {}", own.slices, c.expert_ffn);
  if (options.has_biases && own.slices > 1)
    throw base::ConfigError(
        "parallel.expert_tensor = {}: slices of an expert would each add its bias; parallel.expert shares experts out instead", own.slices);
  if (schedule().repeats_tokens())
    throw base::ConfigError("parallel.sequence_parallel = false: a mixture of experts needs each token on one rank only; set it to true");
  if (c.shared_expert_ffn > 0)
    shared_ = std::make_unique<Mlp>(block, layer, options.gate,
                                    Mlp::Shape{.module = "mlp.shared_experts", .setting = "shared_expert_ffn", .ffn = c.shared_expert_ffn});
}

void Moe::declare(const std::string& prefix) {
  const auto& c = config();
  router_->declare(prefix + "mlp.gate.");
  gate_up_ = &block_.matrix(prefix + "mlp.experts.gate_up_proj", {c.experts, 2 * c.expert_ffn, c.hidden});
  down_ = &block_.matrix(prefix + "mlp.experts.down_proj", {c.experts, c.hidden, c.expert_ffn});
  const auto bias = [&](const char* name, int64_t size) {
    return &block_.add({.name = prefix + name, .shape = {c.experts, size}, .kind = layers::Parameter::Kind::vector, .keeps_fp32 = true});
  };
  if (options_.has_biases) {
    gate_up_bias_ = bias("mlp.experts.gate_up_proj_bias", 2 * c.expert_ffn);
    down_bias_ = bias("mlp.experts.down_proj_bias", c.hidden);
  }
  if (shared_) shared_->declare(prefix);
  if (shared_ && options_.gates_shared) shared_gate_ = &block_.matrix(prefix + "mlp.shared_expert_gate.weight", {1, c.hidden});
  if (const auto& own = layout().experts; own.is_on()) {
    const auto experts = tensor::share_of(c.experts, own.rank, own.size), inner = tensor::share_of(c.expert_ffn, own.slice, own.slices);
    gate_up_->part = {{experts}, {inner, {c.expert_ffn + inner.begin, c.expert_ffn + inner.end}}, {{0, c.hidden}}};
    down_->part = {{experts}, {{0, c.hidden}}, {inner}};
    gate_up_->is_expert = down_->is_expert = true;
    for (auto* of : {gate_up_bias_, down_bias_})
      if (of) of->part = {{experts}, {{0, of->shape[1]}}}, of->is_expert = true;
  }
}

FeedForward::Result Moe::forward(const at::Tensor& in, const at::Tensor& router_state, const ForwardContext& context) const {
  const auto x = in.flatten(0, 1);
  auto routing = router_->route(x, router_state, choose());
  if (context.observer && !layers::is_recomputing()) context.observer->on_routing(layer_, routing);
  if (context.routing_losses) {
    const int64_t rows = context.sequences->batch(), seq = context.sequences->seq();
    routing.weight = context.routing_losses->attach_to(
        routing, layer_, config().experts,
        {.rows = rows, .seq = seq, .first = x.size(0) < rows * seq ? layout().tensor.share(rows * seq).begin : 0});
  }
  if (context.drops_tokens && config().expert_capacity > 0) {
    const double each = static_cast<double>(routing.choice.size(0)) / static_cast<double>(config().experts);
    routing.choice = layers::within_capacity(routing.choice, routing.weight.detach(), config().experts,
                                             static_cast<int64_t>(std::ceil(config().expert_capacity * each)));
    if (context.observer && !layers::is_recomputing()) context.observer->on_capacity(layer_, routing.choice, config().experts);
  }
  const auto skip = config().skip_output == "identity" ? layers::SkipOutput::identity : layers::SkipOutput::zero;
  const auto out = layers::experts(x, routing.choice, routing.weight, {*gate_up_, *down_, gate_up_bias_, down_bias_, options_.gate},
                                   config().top_k, skip, layout().experts.exchange());
  const auto branch = out.view_as(in);
  if (!shared_) return {branch, routing.state};
  auto shared = shared_->forward(in, {}, context).branch;
  if (shared_gate_) shared = shared * at::sigmoid(layers::linear(in, {shared_gate_}));
  return {branch + shared, routing.state};
}

layers::ChooseClasses Moe::choose() const {
  if (config().force_balance)
    return
        [experts = config().experts](const at::Tensor& choice) { return at::arange(choice.size(0), choice.options()).remainder_(experts); };
  if (!block_.routing_replay()) return {};
  return [this](const at::Tensor& choice) { return block_.routing_replay()(layer_, choice); };
}

bool Moe::add_decode_steps(decode::Program& program) const {
  if (config().force_balance || block_.routing_replay()) return false;
  const auto choices = std::make_shared<decode::Choices>();
  choices->top_k = config().top_k, choices->experts = config().experts;
  return router_->add_decode_steps(program, choices) &&
         decode::add_experts(program, {gate_up_, down_, gate_up_bias_, down_bias_, options_.gate, config().skip_output == "identity"},
                             choices) &&
         (!shared_ || shared_->add_decode_steps(program, /*is_beside=*/true, shared_gate_));
}

}  // namespace ingot::models
