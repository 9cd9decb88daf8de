#include "plan/messages.h"

#include <algorithm>

#include "base/error.h"
#include "plan/cluster_profile.h"
#include "schedule/model.h"

namespace ingot::plan {
namespace {

using schedule::Group;
using schedule::Kind;
using schedule::Layer;
using schedule::Layout;
using schedule::Message;
using schedule::Method;

int ranks_of_a_weight(const models::Layout& layout) { return layout.tensor.size * layout.tensor_sequence.size; }

// Ranks that work on one sequence in one stage.
int ranks_of_a_sequence(const models::Layout& layout) { return layout.tensor.size * layout.sequence.size; }

Method method_of(const models::Layout& layout, bool is_linear) {
  if (layout.tensor_sequence.is_on()) return Method::tsp;
  if (layout.tensor.is_on() && layout.sequence.is_on()) return Method::tp_sp;
  if (layout.tensor.is_on()) return layout.tensor.shards_tokens ? Method::megatron_sp : Method::tp;
  if (is_linear) {
    using States = layers::SequenceAxis::States;
    return layout.sequence.states == States::lasp2 ? Method::lasp2 : layout.sequence.states == States::lasp1 ? Method::lasp1 : Method::zeco;
  }
  using Ways = layers::SequenceAxis::Method;
  return layout.sequence.method == Ways::ring ? Method::ring : layout.sequence.method == Ways::ulysses ? Method::ulysses : Method::sp;
}

// What messages keep the busiest rank from computing where it moves them itself: sending and receiving go on at once.
double longest_talk_s(const schedule::Replay& replay) {
  using schedule::Stream;
  double longest = 0;
  for (const auto& rank : replay.ranks) {
    const auto busy = [&](Stream stream) { return rank.busy_s[static_cast<size_t>(stream)]; };
    longest = std::max(longest, busy(Stream::side) + busy(Stream::collective) + std::max(busy(Stream::sending), busy(Stream::receiving)));
  }
  return longest;
}

}  // namespace

double MessageModel::duration(Kind kind, Group group, double bytes) const {
  const Message message{.kind = kind, .group = group, .bytes = static_cast<int64_t>(bytes)};
  return message_duration(message, cluster_, topology_).busy_s;
}

StepMessages MessageModel::predict(const models::Model& part, const RunShape& run, const StepTime& compute) {
  StepMessages step;
  const auto& layout = part.layout();
  if (ranks_of_a_sequence(layout) > 1) {
    int64_t linear = 0, softmax = 0;
    for (int64_t layer = 0; layer < part.config().layers; ++layer)
      if (layout.stage.holds(layer)) ++(part.config().family == "linear_llama" && part.config().is_linear(layer) ? linear : softmax);
    const auto times = static_cast<double>(run.microbatches());
    if (linear > 0) step.blocks_s += static_cast<double>(linear) * times * block_s(part, run, true);
    if (softmax > 0) step.blocks_s += static_cast<double>(softmax) * times * block_s(part, run, false);
  }
  const auto hiding = gradients(part, run, compute);
  step.gradients_s = hiding.exposed_s + kOverlapSlowdown * hiding.hidden_s;
  step.experts_s = experts_s(part, run);
  // While others' passes are waited for, so are the messages within these.
  const double talk_s = step.blocks_s + step.experts_s;
  step.stages_s =
      stages_s(part, run, (compute.passes_s() + talk_s) / static_cast<double>(run.microbatches())) + talk_s * run.bubble / (1 - run.bubble);
  return step;
}

double MessageModel::block_s(const models::Model& part, const RunShape& run, bool is_linear) {
  const auto& c = part.config();
  const auto& layout = part.layout();
  // Experts have axes of their own: of a mixture's block the attention alone is spread.
  const bool has_experts = layout.experts.is_on() || (c.experts > 0 && c.ffn == 0);
  Layout block{.method = method_of(layout, is_linear), .layer = has_experts ? Layer::attention : Layer::block};
  block.sizes = {.hidden = c.hidden,
                 .heads = c.heads,
                 .kv_heads = is_linear ? c.heads : c.kv_heads,
                 .head_dim = is_linear ? c.resolved_linear_key_dim() : c.resolved_head_dim(),
                 .ffn = std::max<int64_t>(c.ffn, ranks_of_a_weight(layout)),
                 .batch = run.sequences_at_once(),
                 .seq = run.seq,
                 .value_dim = is_linear ? c.resolved_linear_value_dim() : 0,
                 .dtype = run.precision};
  block.ranks = ranks_of_a_sequence(layout);
  block.tensor_ranks = layout.tensor.size;
  block.zigzag = layout.sequence.zigzag;
  block.head_buckets = layout.tensor_sequence.head_buckets;
  block.recomputes = run.recompute == models::Recompute::full;
  block.syncs_gradients = false;  // which are summed with those of the data axis
  const auto key = fmt::format("{} {} {} {} {} {} {}", block.label(), schedule::name_of(block.layer), block.ranks, block.sizes.batch,
                               block.sizes.seq, block.recomputes, is_linear);
  const auto known = replayed_.find(key);
  if (known != replayed_.end()) return known->second;
  const auto replay = schedule::replay_on(block, cluster_);
  return replayed_[key] = cluster_.cores_move_messages ? longest_talk_s(replay) : replay.exposed_s;
}

MessageModel::Traffic MessageModel::traffic_of(const models::Model& part, const RunShape& run) const {
  const auto& layout = part.layout();
  struct Sums {
    double gradient_bytes = 0, value_bytes = 0;
  };
  std::map<std::pair<int, int>, Sums> groups;  // by ranks and stride
  for (const auto& p : part.parameters().all()) {
    const auto holders = static_cast<int>(run.holders(*p, layout));
    if (!p->is_trained() || holders < 2) continue;
    const int stride = p->is_expert ? layout.experts.size * layout.experts.slices : p->part.empty() ? 1 : ranks_of_a_weight(layout);
    auto& sums = groups[{holders, stride}];
    const auto elements = static_cast<double>(p->local_elements());
    sums.gradient_bytes += elements * static_cast<double>(std::max<int64_t>(4, run.element_bytes()));
    sums.value_bytes += elements * static_cast<double>(run.element_bytes());
  }
  Traffic traffic;
  for (const auto& [where, sums] : groups) {
    const Group group{0, where.first, where.second};
    if (run.zero == 0) {
      traffic.sum_gradients_s += duration(Kind::all_reduce, group, sums.gradient_bytes);
      continue;
    }
    traffic.sum_gradients_s += duration(Kind::reduce_scatter, group, sums.gradient_bytes);
    traffic.gather_weights_s += duration(Kind::all_gather, group, sums.value_bytes);
  }
  return traffic;
}

// Gradients travel while backward goes on, but for the last layer's; weights while forward does, but for the first one's.
MessageModel::Hiding MessageModel::gradients(const models::Model& part, const RunShape& run, const StepTime& compute) const {
  const auto traffic = traffic_of(part, run);
  const auto layers = static_cast<double>(std::max<int64_t>(1, part.config().layers / part.layout().stage.size));
  const auto microbatches = static_cast<double>(run.microbatches());
  const double forward_s = compute.passes_s() / 3 / microbatches, backward_s = 2 * forward_s;
  Hiding all;
  const auto add = [&](double message_s, double hiding_s, double times) {
    const double exposed_s = cluster_.cores_move_messages ? message_s : std::max(message_s / layers, message_s - hiding_s);
    all.exposed_s += times * exposed_s;
    all.hidden_s += times * (message_s - exposed_s);
  };
  add(traffic.sum_gradients_s, backward_s, run.zero >= 2 ? microbatches : 1);
  if (run.zero > 0) add(traffic.gather_weights_s, forward_s, run.zero >= 3 ? microbatches : 1);
  if (run.zero >= 3) add(traffic.gather_weights_s, backward_s, microbatches);
  return all;
}

double MessageModel::contention_s(const models::Model& part, const RunShape& run, const StepTime& compute) const {
  return kOverlapSlowdown * gradients(part, run, compute).hidden_s;
}

// Rows go to their experts and come back, and the same for their gradients (layers/experts.h); nothing hides that.
double MessageModel::experts_s(const models::Model& part, const RunShape& run) const {
  const auto& experts = part.layout().experts;
  if (!experts.is_on()) return 0;
  const auto& c = part.config();
  // The residual stream of a mixture is cut along the tokens over the ranks of a tensor axis, too: each has experts for its own.
  const double tokens = static_cast<double>(run.sequences_at_once() * run.seq / (part.layout().sequence.size * part.layout().tensor.size));
  // The busiest rank's are waited for.
  const double load = std::clamp(run.expert_load, 1.0, static_cast<double>(experts.size));
  const double bytes = load * tokens * static_cast<double>(c.top_k * experts.slices * c.hidden * run.element_bytes());
  const Group group{0, experts.size * experts.slices, 1};
  int64_t layers = 0;
  for (int64_t layer = 0; layer < c.layers; ++layer) layers += part.layout().stage.holds(layer) ? 1 : 0;
  const double passes = run.recompute == models::Recompute::none ? 4 : 6;
  return passes * static_cast<double>(layers * run.microbatches()) * duration(Kind::all_to_all, group, bytes);
}

schedule::Duration MessageModel::handover(const models::Model& part, const RunShape& run) const {
  const auto& layout = part.layout();
  const int64_t tokens = run.sequences_at_once() * run.seq / layout.sequence.size;
  const auto stride = static_cast<int>(run.replicas) * ranks_of_a_weight(layout);
  const Message message{.kind = Kind::send,
                        .group = Group{0, 1, 1},
                        .bytes = tokens * part.config().hidden * std::max<int64_t>(4, run.element_bytes()),
                        .peer = stride};
  return message_duration(message, cluster_, topology_);
}

// A stage's messages show when the pipeline fills and drains, and as far as a microbatch comes back later than the others that the stage
// keeps can bridge: with 1F1B these are as many as there are stages behind, so that most of it shows.
double MessageModel::stages_s(const models::Model& part, const RunShape& run, double microbatch_s) const {
  const auto& stage = part.layout().stage;
  if (!stage.is_on()) return 0;
  const auto one = handover(part, run);
  const double handover_s = one.busy_s + one.latency_s, stages = stage.size, behind = stage.size - stage.rank - 1;
  const auto kept = static_cast<double>(std::max<int64_t>(1, run.kept_microbatches));
  const double passes_s = run.weights_later ? microbatch_s * 2 / 3 : microbatch_s;
  const double round_trip_s = (behind + 1) * passes_s + 2 * behind * handover_s;
  const double late_s = std::max(0.0, round_trip_s / kept - microbatch_s);
  return 2 * (stages - 1) * handover_s + std::max(0.0, static_cast<double>(run.microbatches()) - kept) * late_s;
}

StepMessages predict_messages(const models::Model& part, const RunShape& run, const MachineProfile& profile, const StepTime& compute) {
  if (run.world == 1) return {};
  return MessageModel(cluster_of(profile, run.precision, run.world, 0)).predict(part, run, compute);
}

}  // namespace ingot::plan
