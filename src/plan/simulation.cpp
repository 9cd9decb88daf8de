#include "plan/simulation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>

#include "base/error.h"
#include "base/random.h"

namespace ingot::plan {
namespace {

using parallel::Action;
using parallel::Pass;

constexpr double kNever = std::numeric_limits<double>::infinity();

// The value that the largest of `count` standard normal variables stays below with probability u: by Newton's method on the logarithm of
// the probability that one of them is above.
double largest_normal(double u, double count) {
  const double above = -std::expm1(std::log(u) / count);
  const bool is_low = above > 0.5;
  const double tail = is_low ? 1 - above : above;  // of the half line that is looked at
  double x = std::sqrt(-2 * std::log(tail));
  for (int i = 0; i < 8; ++i) {
    const double q = std::erfc(x / std::sqrt(2.0)) / 2, density = std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    const double change = std::log(q / tail) * q / density;
    x += change;
    if (std::abs(change) < 1e-9) break;
  }
  return is_low ? -x : x;
}

class Simulator {
 public:
  Simulator(const SimulatedStep& step, const Disturbances& disturbances)
      : step_(step), disturbances_(disturbances), stages_(static_cast<int>(step.stages.size())) {
    check();
    for (int stage = 0; stage < stages_; ++stage) actions_.push_back(parallel::actions_of(step.pipeline, stage));
    units_.resize(static_cast<size_t>(stages_) * static_cast<size_t>(step.replicas));
    for (size_t u = 0; u < units_.size(); ++u) {
      auto& unit = units_[u];
      unit.inputs.assign(pieces() * 2 * microbatches(), kNever);
      unit.slowness = slowness_of(u);
    }
    for (const auto& slow : disturbances.slow) {
      auto& unit = units_[unit_of(slow.rank)];
      unit.slowness = std::max(unit.slowness, slow.factor);
    }
    for (const auto& failure : disturbances.failures) {
      auto& unit = units_[unit_of(failure.rank)];
      unit.dies_s = std::min(unit.dies_s, failure.at_s);
    }
    for (const auto& work : step.stages) {
      Sums sums;
      sums.ready_s.assign(static_cast<size_t>(rounds() * segments_of(work)), 0);
      sums.missing.assign(sums.ready_s.size(), step.replicas);
      sums_.push_back(std::move(sums));
    }
  }

  StepOutcome run() {
    for (size_t u = 0; u < units_.size(); ++u) start_next(u, 0);
    while (!queue_.empty()) {
      const auto event = queue_.top();
      queue_.pop();
      ++outcome_.events;
      now_s_ = event.at_s;
      if (event.kind == Kind::input) arrive(event);
      else if (event.kind == Kind::pass_done) finish_pass(event.unit);
      else finish_sums(static_cast<int>(event.unit));
    }
    return summary();
  }

 private:
  enum class Kind : uint8_t { pass_done, input, sums_done };
  struct Event {
    double at_s;
    uint64_t order;  // of events at the same time: as they were made
    Kind kind;
    size_t unit;  // sums_done: the stage
    size_t input = 0;
    bool operator<(const Event& other) const { return at_s != other.at_s ? at_s > other.at_s : order > other.order; }
  };
  struct Unit {
    size_t next = 0;  // action
    bool is_busy = false, is_done = false, is_dead = false;
    double idle_since_s = 0, end_s = 0;
    double compute_s = 0, stages_wait_s = 0, gradients_wait_s = 0;
    double slowness = 1, dies_s = kNever;
    std::vector<double> inputs;  // when they came: of forward, then of backward, by piece and microbatch
  };
  struct Sums {  // of a stage's gradients, in order
    std::vector<double> ready_s;
    std::vector<int64_t> missing;
    size_t next = 0;
    double free_s = 0;
    bool is_done = false;
  };

  void check() const {
    parallel::check(step_.pipeline);
    if (stages_ != step_.pipeline.stages || step_.replicas < 1 || step_.unit_ranks < 1)
      throw base::ConfigError("a simulated step needs work for each of its {} stages, a replica and a rank", step_.pipeline.stages);
    const auto is_time = [](double s) { return std::isfinite(s) && s >= 0; };
    for (const auto& w : step_.stages)
      if (!is_time(w.forward_s) || !is_time(w.backward_s) || !is_time(w.optimizer_s) || !is_time(w.sum_gradients_s) ||
          !is_time(w.gather_weights_s) || !is_time(w.handover_s) || !is_time(w.handover_latency_s) || w.segments < 1)
        throw base::ConfigError("times of a simulated step must be finite and not negative, and its stages have one segment at least");
    const auto& x = disturbances_;
    if (!(x.jitter >= 0 && x.jitter <= 2)) throw base::ConfigError("jitter {} must be in [0, 2]", x.jitter);
    if (!(x.slow_share >= 0 && x.slow_share <= 1)) throw base::ConfigError("a share of {} slow ranks must be in [0, 1]", x.slow_share);
    if (!(x.slow_factor >= 1 && x.slow_factor <= 1e6))
      throw base::ConfigError("slow ranks take {} times as long; it must be 1 at least", x.slow_factor);
    for (const auto& slow : x.slow) {
      check_rank(slow.rank);
      if (!(slow.factor >= 1 && slow.factor <= 1e6))
        throw base::ConfigError("rank {} takes {} times as long; it must be 1 at least", slow.rank, slow.factor);
    }
    for (const auto& failure : x.failures) {
      check_rank(failure.rank);
      if (!is_time(failure.at_s)) throw base::ConfigError("rank {} fails at {} s; a time cannot be negative", failure.rank, failure.at_s);
    }
  }
  void check_rank(int64_t rank) const {
    if (rank < 0 || rank >= step_.ranks()) throw base::ConfigError("there is no rank {} of {}", rank, step_.ranks());
  }

  size_t pieces() const { return static_cast<size_t>(step_.pipeline.chunks); }
  size_t microbatches() const { return static_cast<size_t>(step_.pipeline.microbatches); }
  size_t unit_of(int64_t rank) const { return static_cast<size_t>(rank / step_.unit_ranks); }
  int stage_of(size_t unit) const { return static_cast<int>(unit / static_cast<size_t>(step_.replicas)); }
  size_t input_index(Pass pass, int chunk, int microbatch) const {
    return ((pass == Pass::forward ? 0 : pieces()) + static_cast<size_t>(chunk)) * microbatches() + static_cast<size_t>(microbatch);
  }
  // How often a stage sums gradients: with ZeRO 2 and 3 for every microbatch.
  int64_t rounds() const { return static_cast<int64_t>(pieces()) * (step_.zero >= 2 ? step_.pipeline.microbatches : 1); }
  int64_t segments_of(const StageWork& work) const { return step_.communication_hides ? work.segments : 1; }

  // The slowest of its ranks.
  double slowness_of(size_t u) const {
    if (disturbances_.slow_share == 0) return 1;
    const double none = std::pow(1 - disturbances_.slow_share, static_cast<double>(step_.unit_ranks));
    return base::uniform_at(slow_key_, u) < none ? 1 : disturbances_.slow_factor;
  }
  // The largest of as many draws as it has ranks.
  double noise_of(size_t u, size_t action) const {
    if (disturbances_.jitter == 0) return 1;
    const double drawn = std::clamp(base::uniform_at(jitter_key_, u * (actions_.front().size() + 1) + action), 1e-16, 1 - 1e-16);
    return std::exp(disturbances_.jitter * largest_normal(drawn, static_cast<double>(step_.unit_ranks)));
  }

  bool is_first_piece(int stage, const Action& a) const { return step_.pipeline.piece_of(stage, a.chunk) == 0; }
  bool is_last_piece(int stage, const Action& a) const { return step_.pipeline.piece_of(stage, a.chunk) + 1 == step_.pipeline.pieces(); }

  // When what the action needs has come; kNever if it has not.
  double input_s(size_t u, const Action& a) const {
    const int stage = stage_of(u);
    if (a.pass == Pass::weights || (a.pass == Pass::forward && is_first_piece(stage, a)) ||
        (a.pass == Pass::backward && is_last_piece(stage, a)))
      return 0;
    return units_[u].inputs[input_index(a.pass, a.chunk, a.microbatch)];
  }

  void push(double at_s, Kind kind, size_t unit, size_t input = 0) { queue_.push({at_s, order_++, kind, unit, input}); }

  void start_next(size_t u, double now_s) {
    auto& unit = units_[u];
    const int stage = stage_of(u);
    const auto& actions = actions_[static_cast<size_t>(stage)];
    if (unit.is_busy || unit.is_dead || unit.next == actions.size()) return;
    const auto& action = actions[unit.next];
    if (input_s(u, action) > now_s) return;
    if (now_s >= unit.dies_s) {
      unit.is_dead = true;
      return;
    }
    const auto& work = step_.stages[static_cast<size_t>(stage)];
    unit.stages_wait_s += now_s - unit.idle_since_s;
    const double pieces_share = 1 / static_cast<double>(pieces());
    const bool splits_backward = step_.pipeline.schedule == parallel::Schedule::zero_bubble;
    const double whole = action.pass == Pass::forward ? work.forward_s : splits_backward ? work.backward_s / 2 : work.backward_s;
    const double duration = whole * pieces_share * unit.slowness * noise_of(u, unit.next);
    unit.compute_s += duration;
    const double end_s = play(action, work, now_s, duration, unit);
    unit.is_busy = true;
    unit.idle_since_s = end_s;
    if (end_s > unit.dies_s) {  // dies on the way
      unit.is_dead = true;
      outcome_.step_s = std::max(outcome_.step_s, unit.dies_s);
      return;
    }
    note_gradients(stage, action, now_s, end_s);
    push(end_s, Kind::pass_done, u);
  }

  // Segments in turn: each waits for its weights where they are gathered meanwhile. Returns when the last one ends.
  double play(const Action& action, const StageWork& work, double now_s, double duration, Unit& unit) const {
    const bool gathers_once = (step_.zero == 1 || step_.zero == 2) && action.pass == Pass::forward && action.microbatch == 0;
    const bool gathers_always = step_.zero >= 3 && action.pass != Pass::weights;
    if (work.gather_weights_s == 0 || (!gathers_once && !gathers_always)) return now_s + duration;
    const auto segments = static_cast<double>(segments_of(work));
    const double gather_s = work.gather_weights_s / static_cast<double>(pieces()) / segments, compute_s = duration / segments;
    double gathered_s = gathers_once ? gather_s * segments * action.chunk : now_s;  // since the step began; one segment ahead
    double end_s = now_s, begin_s = now_s;                                          // of the segment before
    for (double i = 0; i < segments; ++i) {
      if (!step_.communication_hides) gathered_s = end_s;
      else if (gathers_always) gathered_s = std::max(gathered_s, begin_s);
      gathered_s += gather_s;
      unit.gradients_wait_s += std::max(0.0, gathered_s - end_s);
      begin_s = std::max(end_s, gathered_s);
      end_s = begin_s + compute_s;
    }
    return end_s;
  }

  // The pass that makes gradients of the weights whole hands them over segment by segment.
  void note_gradients(int stage, const Action& action, double begin_s, double end_s) {
    const bool splits_backward = step_.pipeline.schedule == parallel::Schedule::zero_bubble;
    if (action.pass != (splits_backward ? Pass::weights : Pass::backward)) return;
    const bool is_last = action.microbatch + 1 == step_.pipeline.microbatches;
    if (!is_last && step_.zero < 2) return;
    const auto& work = step_.stages[static_cast<size_t>(stage)];
    auto& sums = sums_[static_cast<size_t>(stage)];
    const auto segments = static_cast<size_t>(segments_of(work));
    // Pieces give their gradients from the last one to the first.
    const size_t round =
        (step_.zero >= 2 ? static_cast<size_t>(action.microbatch) * pieces() : 0) + (pieces() - 1 - static_cast<size_t>(action.chunk));
    for (size_t i = 0; i < segments; ++i) {
      const size_t index = round * segments + i;
      const double ready_s = begin_s + (end_s - begin_s) * static_cast<double>(i + 1) / static_cast<double>(segments);
      sums.ready_s[index] = std::max(sums.ready_s[index], ready_s);
      --sums.missing[index];
    }
    advance_sums(stage);
  }

  void advance_sums(int stage) {
    auto& sums = sums_[static_cast<size_t>(stage)];
    const auto& work = step_.stages[static_cast<size_t>(stage)];
    const double each_s = work.sum_gradients_s / static_cast<double>(pieces()) / static_cast<double>(segments_of(work));
    // Interleaved schedules may end pieces in another order: what is ready goes first.
    for (size_t index = 0; index < sums.missing.size(); ++index) {
      if (sums.missing[index] != 0) continue;
      sums.missing[index] = -1;
      sums.free_s = std::max(sums.free_s, sums.ready_s[index]) + each_s;
      ++sums.next;
    }
    if (sums.next == sums.missing.size() && !sums.is_done) {
      sums.is_done = true;
      push(sums.free_s, Kind::sums_done, static_cast<size_t>(stage));
    }
  }

  void finish_pass(size_t u) {
    auto& unit = units_[u];
    const int stage = stage_of(u);
    const auto& actions = actions_[static_cast<size_t>(stage)];
    const auto action = actions[unit.next];
    unit.is_busy = false;
    ++unit.next;
    hand_over(u, stage, action);
    if (unit.next == actions.size()) finish_unit(u);
    else start_next(u, now_s_);
  }

  void hand_over(size_t u, int stage, const Action& action) {
    const int piece = step_.pipeline.piece_of(stage, action.chunk) + (action.pass == Pass::forward ? 1 : -1);
    if (action.pass == Pass::weights || piece < 0 || piece >= step_.pipeline.pieces()) return;
    const int to = piece % stages_, chunk = piece / stages_;
    const auto& work = step_.stages[static_cast<size_t>(std::min(stage, to))];
    const size_t peer = static_cast<size_t>(to) * static_cast<size_t>(step_.replicas) + u % static_cast<size_t>(step_.replicas);
    const double arrives_s = now_s_ + (to == stage ? 0 : work.handover_s + work.handover_latency_s);
    push(arrives_s, Kind::input, peer, input_index(action.pass, chunk, action.microbatch));
  }

  void arrive(const Event& event) {
    units_[event.unit].inputs[event.input] = event.at_s;
    start_next(event.unit, event.at_s);
  }

  void finish_unit(size_t u) {
    if (sums_[static_cast<size_t>(stage_of(u))].is_done) settle(u);
  }

  void finish_sums(int stage) {
    for (size_t i = 0; i < static_cast<size_t>(step_.replicas); ++i) {
      const size_t u = static_cast<size_t>(stage) * static_cast<size_t>(step_.replicas) + i;
      if (units_[u].next == actions_[static_cast<size_t>(stage)].size()) settle(u);
    }
  }

  // All passes and all sums are done: the update.
  void settle(size_t u) {
    auto& unit = units_[u];
    const int stage = stage_of(u);
    if (unit.is_done) return;
    unit.is_done = true;
    const double begin_s = std::max(unit.idle_since_s, sums_[static_cast<size_t>(stage)].free_s);
    unit.gradients_wait_s += begin_s - unit.idle_since_s;
    const double duration = step_.stages[static_cast<size_t>(stage)].optimizer_s * unit.slowness * noise_of(u, unit.next);
    unit.compute_s += duration;
    unit.end_s = begin_s + duration;
    if (unit.end_s > unit.dies_s) {
      unit.is_dead = true;
      unit.is_done = false;
    }
  }

  StepOutcome summary() {
    outcome_.stages.resize(static_cast<size_t>(stages_));
    for (size_t u = 0; u < units_.size(); ++u) {
      const auto& unit = units_[u];
      auto& stage = outcome_.stages[static_cast<size_t>(stage_of(u))];
      stage.compute_s += unit.compute_s / static_cast<double>(step_.replicas);
      stage.stages_wait_s += unit.stages_wait_s / static_cast<double>(step_.replicas);
      stage.gradients_wait_s += unit.gradients_wait_s / static_cast<double>(step_.replicas);
      outcome_.step_s = std::max(outcome_.step_s, unit.is_done ? unit.end_s : unit.is_dead ? unit.dies_s : unit.idle_since_s);
      if (unit.is_dead) ++outcome_.dead;
      else if (!unit.is_done)
        ++(unit.next == actions_[static_cast<size_t>(stage_of(u))].size() ? outcome_.waiting_for_gradients : outcome_.waiting_for_stages);
    }
    outcome_.is_complete = outcome_.dead + outcome_.waiting_for_gradients + outcome_.waiting_for_stages == 0;
    return outcome_;
  }

  const SimulatedStep& step_;
  const Disturbances& disturbances_;
  int stages_;
  uint64_t slow_key_ = base::stream_key(disturbances_.seed, "slow ranks"), jitter_key_ = base::stream_key(disturbances_.seed, "jitter");
  std::vector<std::vector<Action>> actions_;  // of each stage
  std::vector<Unit> units_;
  std::vector<Sums> sums_;
  std::priority_queue<Event> queue_;
  uint64_t order_ = 0;
  double now_s_ = 0;
  StepOutcome outcome_;
};

}  // namespace

StepOutcome simulate_step(const SimulatedStep& step, const Disturbances& disturbances) { return Simulator(step, disturbances).run(); }

SimulatedStep on_shared_cores(SimulatedStep step, double ranks_per_core) {
  if (step.stages.size() == 1) return step;
  const auto scale = [&](double by) {
    for (auto& stage : step.stages) stage.forward_s *= by, stage.backward_s *= by, stage.optimizer_s *= by;
  };
  scale(1 / ranks_per_core);
  const auto alone = simulate_step(step);
  const auto& busiest = *std::max_element(alone.stages.begin(), alone.stages.end(),
                                          [](const StageOutcome& a, const StageOutcome& b) { return a.compute_s < b.compute_s; });
  // The others' work goes into the waits; what of the waits is left grows with all else.
  const double work_s = busiest.compute_s, wait_s = alone.step_s - work_s - busiest.gradients_wait_s,
               left_s = std::max(0.0, wait_s - (ranks_per_core - 1) * work_s);
  scale(work_s > 0 ? (ranks_per_core * work_s + left_s) / (work_s + wait_s) : ranks_per_core);
  return step;
}

}  // namespace ingot::plan
