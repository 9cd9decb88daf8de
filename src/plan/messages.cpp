#include "plan/messages.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "plan/cluster_profile.h"

namespace ingot::plan {
namespace {

using schedule::Group;
using schedule::Kind;
using schedule::Message;

int ranks_of_a_weight(const parallel::Layout& layout) { return layout.tensor.size * layout.tensor_sequence.size; }

}  // namespace

double MessageModel::duration(Kind kind, Group group, double bytes) const {
  const Message message{.kind = kind, .group = group, .bytes = static_cast<int64_t>(bytes)};
  return message_duration(message, cluster_, topology_).busy_s;
}

Transport MessageModel::transport() const {
  const auto cluster = std::make_shared<const schedule::Cluster>(cluster_);
  return {.duration = [cluster, topology = topology_](const Message& message) { return message_duration(message, *cluster, topology); },
          .cores_move_messages = cluster_.cores_move_messages,
          .slowdown = cluster_.cores_move_messages ? 0 : kOverlapSlowdown};
}

StepMessages MessageModel::predict(const models::Model& part, const RunShape& run, const StepTime& compute, PassPrices& prices) const {
  StepMessages step;
  const auto pass = prices.of(part, run.pass_of(part), run.documents_of(part));
  const auto times = static_cast<double>(run.microbatches());
  step.blocks_s = times * (pass.forward.blocks_s + pass.backward.blocks_s);
  step.experts_s = times * (pass.forward.experts_s + pass.backward.experts_s);
  const auto hiding = gradients(part, run, compute);
  step.gradients_s = hiding.exposed_s + kOverlapSlowdown * hiding.hidden_s;
  // While others' passes are waited for, so is the communication within these.
  const double within_s = step.blocks_s + step.experts_s;
  step.stages_s = stages_s(part, run, (compute.passes_s() + within_s) / times) + within_s * run.bubble / (1 - run.bubble);
  return step;
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
  const MessageModel messages(cluster_of(profile, run.precision, run.world, 0));
  PassPrices prices(Rates(profile, run.precision), messages.transport());
  return messages.predict(part, run, compute, prices);
}

}  // namespace ingot::plan
