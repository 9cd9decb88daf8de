#include "plan/trace/pass_cutter.h"

#include <algorithm>
#include <map>

#include "parallel/buckets.h"
#include "plan/trace/alike_operations.h"

namespace ingot::plan {
namespace {

using device::Trace;

// Takes a trace apart. Events belong to the part that began last: what has no layer of its own goes with what came before it.
class Cutter {
 public:
  Cutter(const Trace& trace, int64_t layers) : trace_(trace), alike_(trace), layers_(layers) {
    scopes_.reserve(trace.scopes.size());
    for (size_t i = 0; i < trace.scopes.size(); ++i) scopes_.push_back(place_of(static_cast<int32_t>(i)));
  }

  void cut(PassTrace& result) {
    result.blocks.resize(static_cast<size_t>(layers_));
    collect();
    begin(result.embedding.forward, 0);
    for (const auto& event : events_) {
      advance(event, result);
      take(event);
    }
    end(trace_.positions);
    set_levels();
  }

 private:
  enum class Stage { embedding, blocks, head, head_backward, blocks_backward, embedding_backward };
  struct Place {
    int64_t layer = -1;
    bool is_backward = false, is_embedding = false;
  };
  enum class Kind : uint8_t { allocation, operation, start, wait };
  struct Event {
    int64_t position;
    Kind kind;
    int32_t index, scope;
  };

  Place place_of(int32_t scope) const {
    Place place{.is_backward = trace_.is_backward(scope)};
    for (int32_t s = scope; s > 0; s = trace_.scopes[static_cast<size_t>(s)].parent) {
      const auto& name = trace_.scopes[static_cast<size_t>(s)].name;
      if (name.starts_with("layer ")) place.layer = std::stoll(name.substr(6));
      if (name == "embedding") place.is_embedding = true;
      if (name == "backward") place.is_backward = true;
    }
    return place;
  }

  void collect() {
    const auto add = [&](int64_t position, Kind kind, size_t index, int32_t scope) {
      events_.push_back({position, kind, static_cast<int32_t>(index), scope});
    };
    for (size_t i = 0; i < trace_.allocations.size(); ++i)
      add(trace_.allocations[i].begin, Kind::allocation, i, trace_.allocations[i].scope);
    for (size_t i = 0; i < trace_.operations.size(); ++i)
      add(trace_.operations[i].position, Kind::operation, i, trace_.operations[i].scope);
    for (size_t i = 0; i < trace_.communications.size(); ++i) {
      const auto& c = trace_.communications[i];
      add(c.start, Kind::start, i, c.scope);
      if (c.wait != Trace::kNever) add(c.wait, Kind::wait, i, c.wait_scope);
    }
    std::sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) { return a.position < b.position; });
  }

  void advance(const Event& event, PassTrace& result) {
    const auto& place = scopes_[static_cast<size_t>(event.scope)];
    if (place.layer >= 0) {
      const auto at = static_cast<size_t>(place.layer);
      if (!place.is_backward && (stage_ == Stage::embedding || stage_ == Stage::blocks)) {
        if (stage_ == Stage::embedding || place.layer != layer_)
          next(Stage::blocks, place.layer, result.blocks[at].forward, event.position);
      } else if (place.is_backward && stage_ != Stage::embedding_backward) {
        if (stage_ != Stage::blocks_backward || place.layer < layer_)
          next(Stage::blocks_backward, place.layer, result.blocks[at].backward, event.position);
      }
    } else if (!place.is_backward) {
      if (stage_ == Stage::blocks && layer_ + 1 == layers_) next(Stage::head, -1, result.head.forward, event.position);
    } else if (stage_ == Stage::head) {
      next(Stage::head_backward, -1, result.head.backward, event.position);
    } else if (stage_ == Stage::blocks_backward && layer_ == 0 && place.is_embedding) {
      next(Stage::embedding_backward, -1, result.embedding.backward, event.position);
    }
  }

  void next(Stage stage, int64_t layer, PassSegment& segment, int64_t position) {
    end(position);
    stage_ = stage;
    layer_ = layer;
    begin(segment, position);
  }
  void begin(PassSegment& segment, int64_t position) {
    segment_ = &segment;
    begin_ = position;
    alike_.begin();
  }
  void end(int64_t position) { borders_.push_back({segment_, begin_, position}); }

  void take(const Event& event) {
    switch (event.kind) {
      case Kind::allocation: break;
      case Kind::operation: take_operation(trace_.operations[static_cast<size_t>(event.index)]); break;
      case Kind::start:
        if (auto* traffic = traffic_of(event)) {
          traffic->push_back(trace_.communications[static_cast<size_t>(event.index)]);
          break;
        }
        communication_at_[event.index] = {segment_, static_cast<int32_t>(segment_->communications.size())};
        segment_->events.push_back({PassSegment::Event::Kind::start, static_cast<int32_t>(segment_->communications.size())});
        segment_->communications.push_back(trace_.communications[static_cast<size_t>(event.index)]);
        break;
      case Kind::wait:
        // What is waited for in another part than it began in has had time to arrive.
        if (const auto found = communication_at_.find(event.index); found != communication_at_.end() && found->second.first == segment_)
          segment_->events.push_back({PassSegment::Event::Kind::wait, found->second.second});
        break;
    }
  }

  // Of gradients and weights, which are priced by what can hide them.
  std::vector<Trace::Communication>* traffic_of(const Event& event) {
    if (trace_.enclosing(event.scope, parallel::Buckets::kReduceScope) >= 0) return &segment_->sums;
    return trace_.enclosing(event.scope, parallel::Buckets::kGatherScope) >= 0 ? &segment_->gathers : nullptr;
  }

  void take_operation(const Trace::Operation& operation) {
    segment_->events.push_back({PassSegment::Event::Kind::operation, alike_.count(operation, segment_->operations)});
  }

  // What lives, part by part.
  void set_levels() {
    std::vector<std::pair<int64_t, int64_t>> changes;  // position, bytes
    for (const auto& a : trace_.allocations) {
      changes.emplace_back(a.begin, a.bytes);
      if (a.end != Trace::kNever) changes.emplace_back(a.end, -a.bytes);
    }
    std::sort(changes.begin(), changes.end());
    size_t at = 0;
    int64_t level = 0;
    for (const auto& border : borders_) {
      const int64_t before = level;
      int64_t peak = level;
      for (; at < changes.size() && changes[at].first < border.end; ++at) peak = std::max(peak, level += changes[at].second);
      border.segment->kept_bytes = level - before;
      border.segment->peak_bytes = peak - before;
    }
  }

  struct Border {
    PassSegment* segment;
    int64_t begin, end;
  };
  const Trace& trace_;
  AlikeOperations alike_;
  int64_t layers_;
  std::vector<Place> scopes_;
  std::vector<Event> events_;
  std::vector<Border> borders_;
  Stage stage_ = Stage::embedding;
  int64_t layer_ = -1, begin_ = 0;
  PassSegment* segment_ = nullptr;
  std::map<int32_t, std::pair<PassSegment*, int32_t>> communication_at_;
};

}  // namespace

void cut(const Trace& trace, int64_t layers, PassTrace& result) { Cutter(trace, layers).cut(result); }

}  // namespace ingot::plan
