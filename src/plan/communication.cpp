#include "plan/communication.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "plan/cluster_profile.h"

namespace ingot::plan {
namespace {

using schedule::Communication;
using schedule::Group;
using schedule::Kind;

int ranks_of_a_weight(const parallel::Layout& layout) { return layout.tensor.size * layout.tensor_sequence.size; }

}  // namespace

Transport CommunicationModel::transport() const {
  const auto cluster = std::make_shared<const schedule::Cluster>(cluster_);
  return {.duration = [cluster,
                       topology = topology_](const Communication& message) { return communication_duration(message, *cluster, topology); },
          .cores_communicate = cluster_.cores_communicate,
          .slowdown = cluster_.cores_communicate ? 0 : kOverlapSlowdown};
}

StepCommunication CommunicationModel::predict(const models::Model& part, const RunShape& run, const StepTime& compute,
                                              PassPrices& prices) const {
  StepCommunication step;
  const auto pass = prices.of(part, run.pass_of(part), run.documents_of(part));
  const auto times = static_cast<double>(run.microbatches());
  step.blocks_s = times * (pass.forward.blocks_s + pass.backward.blocks_s);
  step.experts_s = times * (pass.forward.experts_s + pass.backward.experts_s);
  const auto traffic = traffic_of(part, run, prices.traces());
  const auto hiding = gradients(traffic, part, run, compute);
  step.gradients_s = hiding.exposed_s + kOverlapSlowdown * hiding.hidden_s;
  step.update_s = traffic.update_s;
  // While others' passes are waited for, so is the communication within these.
  const double within_s = step.blocks_s + step.experts_s;
  step.stages_s = stages_s(part, run, (compute.passes_s() + within_s) / times) + within_s * run.bubble / (1 - run.bubble);
  return step;
}

double CommunicationModel::duration(const UpdateTrace::Communications& communications) const {
  double seconds = 0;
  for (const auto& c : communications) seconds += communication_duration(message_of(c), cluster_, topology_).busy_s;
  return seconds;
}

CommunicationModel::Traffic CommunicationModel::traffic_of(const models::Model& part, const RunShape& run, PassTraces& traces) const {
  const auto& update = traces.update_of(part, run.update());
  Traffic traffic{
      .sum_gradients_s = duration(update.sums), .gather_weights_s = duration(update.gathers), .update_s = duration(update.update)};
  if (run.zero < 3) return traffic;
  // Vectors stay and are sent once a step; they count as sent with the others.
  traces.of(part, run.pass_of(part)).visit(span_of(part), [&](const BlockPass& block) {
    traffic.gather_weights_s += duration(block.forward.gathers);
    traffic.gather_again_s += duration(block.backward.gathers);
  });
  return traffic;
}

// Gradients travel while backward goes on, but for the last layer's; weights while forward does, but for the first one's.
CommunicationModel::Hiding CommunicationModel::gradients(const Traffic& traffic, const models::Model& part, const RunShape& run,
                                                         const StepTime& compute) const {
  const auto layers = static_cast<double>(std::max<int64_t>(1, part.config().layers / part.layout().stage.size));
  const auto microbatches = static_cast<double>(run.microbatches());
  const double forward_s = compute.passes_s() / 3 / microbatches, backward_s = 2 * forward_s;
  Hiding all;
  const auto add = [&](double message_s, double hiding_s, double times) {
    const double exposed_s = cluster_.cores_communicate ? message_s : std::max(message_s / layers, message_s - hiding_s);
    all.exposed_s += times * exposed_s;
    all.hidden_s += times * (message_s - exposed_s);
  };
  add(traffic.sum_gradients_s, backward_s, run.zero >= 2 ? microbatches : 1);
  add(traffic.gather_weights_s, forward_s, run.zero >= 3 ? microbatches : 1);
  add(traffic.gather_again_s, backward_s, microbatches);
  return all;
}

double CommunicationModel::contention_s(const models::Model& part, const RunShape& run, const StepTime& compute, PassTraces& traces) const {
  return kOverlapSlowdown * gradients(traffic_of(part, run, traces), part, run, compute).hidden_s;
}

schedule::Duration CommunicationModel::handover(const models::Model& part, const RunShape& run) const {
  const auto& layout = part.layout();
  const int64_t tokens = run.sequences_at_once() * run.seq / layout.sequence.size;
  const auto stride = static_cast<int>(run.replicas) * ranks_of_a_weight(layout);
  const Communication message{.kind = Kind::send,
                              .group = Group{0, 1, 1},
                              .bytes = tokens * part.config().hidden * std::max<int64_t>(4, run.element_bytes()),
                              .peer = stride};
  return communication_duration(message, cluster_, topology_);
}

// A stage's messages show when the pipeline fills and drains, and as far as a microbatch comes back later than the others that the stage
// keeps can bridge: with 1F1B these are as many as there are stages behind, so that most of it shows.
double CommunicationModel::stages_s(const models::Model& part, const RunShape& run, double microbatch_s) const {
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

StepCommunication predict_communication(const models::Model& part, const RunShape& run, const MachineProfile& profile,
                                        const StepTime& compute) {
  if (run.world == 1) return {};
  const CommunicationModel model(cluster_of(profile, run.dtype(), run.world, 0));
  PassPrices prices(Rates(profile, run.dtype()), model.transport());
  return model.predict(part, run, compute, prices);
}

}  // namespace ingot::plan
