#include "bench/work_watch.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>

#include <atomic>

#include "base/error.h"
#include "base/work_scope.h"

namespace ingot::bench {

using plan::is_gemm, plan::kind_of_operator;
namespace {

// Torch's callbacks carry no data of ours.
std::atomic<WorkWatch*> watching{nullptr};

struct Context : at::ObserverContext {};

}  // namespace

double WorkTimes::of(WorkKind kind) const {
  double sum = 0;
  for (const double part : seconds[static_cast<size_t>(kind)]) sum += part;
  return sum;
}

WorkTimes& WorkTimes::operator+=(const WorkTimes& other) {
  for (size_t kind = 0; kind < kWorkKinds; ++kind)
    for (size_t pass = 0; pass < kWorkPasses; ++pass) seconds[kind][pass] += other.seconds[kind][pass];
  wall_s += other.wall_s;
  spans = other.spans;
  for (const auto& [name, times] : other.operators) {
    auto& own = operators[name];
    own.kind = times.kind;
    own.calls += times.calls;
    own.self_s += times.self_s;
  }
  return *this;
}

WorkWatch::~WorkWatch() {
  if (is_on_) stop();
}

void WorkWatch::start() {
  WorkWatch* nobody = nullptr;
  if (!watching.compare_exchange_strong(nobody, this)) throw base::Error("two watches of one process cannot run at once");
  times_ = {};
  operators_.clear();
  spans_.clear();
  origins_.clear();
  Frame bottom;
  bottom.times = entry_of("(between operators)", bottom);
  frames_.assign(1, bottom);
  // On this thread; the engine's threads take it over from here.
  handle_ =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&WorkWatch::on_begin, &WorkWatch::on_end)
                                     .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
  is_on_ = true;
  if (synchronise_) synchronise_();
  started_ = last_ = Clock::now();
}

WorkTimes WorkWatch::stop() {
  charge();
  at::removeCallback(handle_);
  is_on_ = false;
  watching = nullptr;
  times_.wall_s = std::chrono::duration<double>(last_ - started_).count();
  for (auto& [name, by_kind] : operators_)
    for (auto& entry : by_kind)
      if (entry) times_.operators[{name, entry->kind}] = *entry;
  times_.spans.reserve(spans_.size());
  for (const auto& s : spans_) times_.spans.push_back({*s.name, s.kind, s.pass, s.begin_s, s.end_s});
  return std::move(times_);
}

std::unique_ptr<at::ObserverContext> WorkWatch::on_begin(const at::RecordFunction& function) {
  WorkWatch* watch = watching;
  if (!watch) return nullptr;
  watch->begin(function);
  return std::make_unique<Context>();
}

void WorkWatch::on_end(const at::RecordFunction&, at::ObserverContext* context) {
  WorkWatch* watch = watching;
  if (watch && context) watch->end();
}

// Everything since the last border was the innermost frame's.
void WorkWatch::charge() {
  if (synchronise_) synchronise_();
  const auto now = Clock::now();
  const double passed_s = std::chrono::duration<double>(now - last_).count();
  last_ = now;
  const auto& top = frames_.back();
  times_.seconds[static_cast<size_t>(top.times->kind)][static_cast<size_t>(top.pass)] += passed_s;
  top.times->self_s += passed_s;
}

WorkTimes::Operator* WorkWatch::entry_of(const char* name, const Frame& frame) {
  const auto kind = frame.is_again ? WorkKind::recomputation : frame.has_kind ? frame.kind : WorkKind::unattributed;
  auto& entry = operators_[name][static_cast<size_t>(kind)];
  if (!entry) entry = std::make_unique<WorkTimes::Operator>(WorkTimes::Operator{kind, 0, 0});
  return entry.get();
}

WorkWatch::Frame WorkWatch::frame_of(const at::RecordFunction& function, const Frame& above) const {
  using Rule = base::Work::Rule;
  Frame frame = above;
  const std::string_view name = function.name();
  const auto take = [&](const base::Work& found) {
    frame.rule = found.rule;
    frame.has_kind = true;
    frame.kind = found.kind;
  };
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    frame.pass = WorkPass::backward;
    const auto origin = origins_.find(function.seqNr());
    if (origin != origins_.end()) {
      frame.rule = origin->second.rule, frame.has_kind = origin->second.has_kind, frame.kind = origin->second.kind;
    } else if (const auto known = kind_of_operator(name)) {
      take(*known);
    }
    return frame;
  }
  if (function.scope() == at::RecordScope::USER_SCOPE) {
    const auto found = base::WorkScope::entered();
    if (found.rule == Rule::passes) return frame;
    if (found.rule == Rule::forward || found.rule == Rule::backward) {
      // Of a recomputation it is the second run that counts as such, not its backward pass.
      frame = Frame{.pass = found.rule == Rule::forward ? WorkPass::forward : WorkPass::backward};
      return frame;
    }
    if (found.rule == Rule::again) {
      frame = Frame{.rule = Rule::passes, .pass = WorkPass::backward, .is_again = true};
      return frame;
    }
    if (above.has_kind && above.rule == Rule::owns) return frame;
    take(found);
    return frame;
  }
  if (above.has_kind) {
    if (above.rule == Rule::shares && is_gemm(name)) frame.kind = WorkKind::matmul;
    return frame;
  }
  if (const auto found = kind_of_operator(name)) take(*found);
  return frame;
}

void WorkWatch::begin(const at::RecordFunction& function) {
  charge();
  Frame frame = frame_of(function, frames_.back());
  // The next node of the graph, if this makes one, is of this kind.
  if (at::GradMode::is_enabled() && function.scope() != at::RecordScope::BACKWARD_FUNCTION)
    origins_[static_cast<int64_t>(at::sequence_number::peek())] = {frame.rule, frame.has_kind, frame.kind};
  frame.times = entry_of(function.name(), frame);
  ++frame.times->calls;
  frame.name = &operators_.find(function.name())->first;
  const auto pass = frame.pass;
  frames_.push_back(std::move(frame));
  charge_watch(pass);
  frames_.back().begin_s = since_start();
}

void WorkWatch::end() {
  if (frames_.size() < 2) return;
  charge();
  auto& frame = frames_.back();
  const auto pass = frame.pass;
  spans_.push_back({frame.name, frame.times->kind, pass, frame.begin_s, since_start()});
  frames_.pop_back();
  charge_watch(pass);
}

double WorkWatch::since_start() const { return std::chrono::duration<double>(last_ - started_).count(); }

void WorkWatch::charge_watch(WorkPass pass) {
  const auto now = Clock::now();
  times_.seconds[static_cast<size_t>(WorkKind::watching)][static_cast<size_t>(pass)] += std::chrono::duration<double>(now - last_).count();
  last_ = now;
}

}  // namespace ingot::bench
