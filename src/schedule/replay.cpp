#include "schedule/replay.h"

#include <algorithm>
#include <map>
#include <queue>
#include <tuple>

#include "base/error.h"

namespace ingot::schedule {
namespace {

struct Place {
  int rank, operation;
};

// An operation of one rank, or what several do together.
struct Event {
  std::vector<Place> places;
  size_t expected = 1;  // places
  int missing = 0;      // operations that must end before, of all places
  double ready_s = 0;
  Duration duration = 0;
};

bool is_joint(const Operation& operation) {
  const auto* message = std::get_if<Communication>(&operation.work);
  return message && (message->kind == Kind::send || message->kind == Kind::receive || message->group.size > 1);
}

class Simulation {
 public:
  Simulation(const Program& program, const Durations& durations) : program_(program), durations_(durations) {
    const size_t ranks = program.ranks.size();
    event_of_.resize(ranks);
    followers_.resize(ranks);
    next_on_stream_.resize(ranks);
    result_.ranks.resize(ranks);
    for (size_t rank = 0; rank < ranks; ++rank) enter(static_cast<int>(rank));
    for (const auto& event : events_)
      if (event.places.size() != event.expected) {
        const auto& [rank, index] = event.places.front();
        throw base::CommError("rank {} would wait for ever in {} '{}': {} of {} ranks take part", rank, index,
                              operation_at(event.places.front()).name, event.places.size(), event.expected);
      }
  }

  Replay run() {
    std::queue<int> ready;
    for (size_t event = 0; event < events_.size(); ++event)
      if (events_[event].missing == 0) ready.push(static_cast<int>(event));
    size_t done = 0;
    for (; !ready.empty(); ready.pop(), ++done) finish(ready.front(), ready);
    if (done != events_.size())
      throw base::CommError("{} of {} operations wait for each other in a circle", events_.size() - done, events_.size());
    sum_up();
    return std::move(result_);
  }

 private:
  const Operation& operation_at(Place place) const {
    return program_.ranks[static_cast<size_t>(place.rank)].operations()[static_cast<size_t>(place.operation)];
  }
  int& event_at(Place place) { return event_of_[static_cast<size_t>(place.rank)][static_cast<size_t>(place.operation)]; }
  std::vector<int>& followers_of(Place place) { return followers_[static_cast<size_t>(place.rank)][static_cast<size_t>(place.operation)]; }

  // Sender, receiver and number, or a group's members and number.
  using Key = std::tuple<bool, int, int, int, int>;
  Key key_of(int rank, const Communication& m) {
    const bool is_send = m.kind == Kind::send, is_message = is_send || m.kind == Kind::receive;
    if (!is_message) return {false, m.group.first, m.group.size, m.group.stride, collectives_[{rank, m.group}]++};
    const int from = is_send ? rank : m.peer, to = is_send ? m.peer : rank;
    return {true, from, to, 0, messages_[{is_send, from, to}]++};
  }

  int event_for(Place place) {
    const auto& operation = operation_at(place);
    if (!is_joint(operation)) {
      events_.push_back({.places = {place}, .duration = durations_(operation)});
      return static_cast<int>(events_.size()) - 1;
    }
    const auto& message = std::get<Communication>(operation.work);
    const auto [found, is_new] = joint_.try_emplace(key_of(place.rank, message), static_cast<int>(events_.size()));
    if (is_new) {
      const bool is_collective = message.kind != Kind::send && message.kind != Kind::receive;
      events_.push_back({.expected = is_collective ? static_cast<size_t>(message.group.size) : 2, .duration = durations_(operation)});
    } else {
      match(events_[static_cast<size_t>(found->second)].places.front(), place);
    }
    events_[static_cast<size_t>(found->second)].places.push_back(place);
    return found->second;
  }

  void match(Place first, Place second) const {
    const auto &a = std::get<Communication>(operation_at(first).work), &b = std::get<Communication>(operation_at(second).work);
    const bool is_message = a.kind == Kind::send || a.kind == Kind::receive;
    if (a.bytes == b.bytes && (is_message || (a.kind == b.kind && a.peer == b.peer))) return;
    throw base::CommError("rank {}'s {} '{}' of {} bytes meets rank {}'s {} '{}' of {} bytes", first.rank, name_of(a.kind),
                          operation_at(first).name, a.bytes, second.rank, name_of(b.kind), operation_at(second).name, b.bytes);
  }

  void enter(int rank) {
    const auto& operations = program_.ranks[static_cast<size_t>(rank)].operations();
    event_of_[static_cast<size_t>(rank)].resize(operations.size());
    followers_[static_cast<size_t>(rank)].resize(operations.size());
    next_on_stream_[static_cast<size_t>(rank)].assign(operations.size(), -1);
    result_.ranks[static_cast<size_t>(rank)].spans.resize(operations.size());
    std::array<int, kStreams> last;
    last.fill(-1);
    for (int i = 0; i < static_cast<int>(operations.size()); ++i) {
      const auto& operation = operations[static_cast<size_t>(i)];
      const int event = event_at({rank, i}) = event_for({rank, i});
      auto& before = last[static_cast<size_t>(operation.stream)];
      for (const int first : operation.after) followers_of({rank, first}).push_back(i);
      if (before >= 0) next_on_stream_[static_cast<size_t>(rank)][static_cast<size_t>(before)] = i;
      events_[static_cast<size_t>(event)].missing += static_cast<int>(operation.after.size()) + (before >= 0 ? 1 : 0);
      before = i;
    }
  }

  void finish(int index, std::queue<int>& ready) {
    const auto event = events_[static_cast<size_t>(index)];
    const double free_s = event.ready_s + event.duration.busy_s;
    const Span span{event.ready_s, free_s + event.duration.latency_s};
    for (const auto place : event.places) {
      auto& rank = result_.ranks[static_cast<size_t>(place.rank)];
      rank.spans[static_cast<size_t>(place.operation)] = span;
      rank.busy_s[static_cast<size_t>(operation_at(place).stream)] += event.duration.busy_s;
      for (const int follower : followers_of(place)) release({place.rank, follower}, span.end_s, ready);
      const int next = next_on_stream_[static_cast<size_t>(place.rank)][static_cast<size_t>(place.operation)];
      if (next >= 0) release({place.rank, next}, free_s, ready);
    }
    result_.time_s = std::max(result_.time_s, span.end_s);
  }

  void release(Place place, double at_s, std::queue<int>& ready) {
    auto& event = events_[static_cast<size_t>(event_at(place))];
    event.ready_s = std::max(event.ready_s, at_s);
    if (--event.missing == 0) ready.push(event_at(place));
  }

  void sum_up() {
    double most_compute_s = 0;
    for (const auto& of_rank : result_.ranks)
      most_compute_s = std::max(most_compute_s, of_rank.busy_s[static_cast<size_t>(Stream::compute)]);
    result_.exposed_s = result_.time_s - most_compute_s;
  }

  const Program& program_;
  const Durations& durations_;
  std::vector<Event> events_;
  std::vector<std::vector<int>> event_of_;                // by rank and operation
  std::vector<std::vector<std::vector<int>>> followers_;  // by rank and operation, of the same rank
  std::vector<std::vector<int>> next_on_stream_;          // by rank and operation
  std::map<Key, int> joint_;
  std::map<std::pair<int, Group>, int> collectives_;
  std::map<std::tuple<bool, int, int>, int> messages_;
  Replay result_;
};

}  // namespace

Replay replay(const Program& program, const Durations& durations) { return Simulation(program, durations).run(); }

}  // namespace ingot::schedule
