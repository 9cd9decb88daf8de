#include "bench/parallel/layer_program.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>

#include "bench/parallel/rank_layer.h"
#include "comm/recording_fabric.h"
#include "device/tracer.h"
#include "plan/priced_pass.h"
#include "plan/trace/work_of_scope.h"

namespace ingot::bench {
namespace {

using device::Trace;
using schedule::Layout;
using schedule::Method;
using schedule::Pass;

Trace trace_rank(const Layout& layout, int rank, device::Target target) {
  const device::CountingDevice counting(target);
  const auto world = comm::recorded_world(rank, layout.ranks);
  device::Tracer tracer(counting.device());
  tracer.record_operations(false);
  RankLayer layer(layout, *world, counting.device());
  {
    const at::NoGradGuard no_grad;
    layer.forward();  // what is made once comes to be
  }
  const at::AutoGradMode with_grad(layout.pass != Pass::forward);
  at::Tensor out;
  if (layout.pass == Pass::backward) out = layer.forward();
  tracer.record_operations(true);
  tracer.restart_peak();
  if (layout.pass != Pass::backward) out = layer.forward();
  if (layout.pass != Pass::forward) layer.backward(out);
  return tracer.finish();
}

// A rank that does the same, but for whom it talks to: in the middle of a chain all do, in collectives that have no root.
int representative_of(const Layout& layout, int rank) {
  switch (layout.method) {
    case Method::tp:
    case Method::megatron_sp:
    case Method::ulysses: return 0;
    case Method::lasp1:
    case Method::zeco: return rank > 0 && rank + 1 < layout.ranks ? 1 : rank;
    default: return rank;
  }
}

schedule::OperationList moved(const schedule::OperationList& list, int by) {
  schedule::OperationList out;
  for (auto operation : list.operations()) {
    if (auto* message = std::get_if<schedule::Communication>(&operation.work);
        message && (message->kind == schedule::Kind::send || message->kind == schedule::Kind::receive)) {
      message->group.first += by;
      message->peer += by;
    }
    out.add(operation.name, operation.stream, operation.work, operation.after);
  }
  return out;
}

class ListWriter {
 public:
  ListWriter(const Trace& trace, int rank) : trace_(trace), works_(trace), rank_(rank), operation_of_(trace.communications.size(), -1) {}

  schedule::OperationList write() {
    collect();
    for (const auto& event : events_) {
      const auto i = static_cast<size_t>(event.index);
      switch (event.kind) {
        case Event::Kind::operation: compute(trace_.operations[i]); break;
        case Event::Kind::start: start(i); break;
        case Event::Kind::wait: wait(i); break;
        case Event::Kind::point: points_[event.index] = streams_[trace_.stream_waits[i].other]; break;
        case Event::Kind::join: join(trace_.stream_waits[i].stream, points_[event.index]); break;
      }
    }
    return std::move(list_);
  }

 private:
  struct Event {
    enum class Kind : uint8_t { point, operation, start, wait, join } kind;
    int64_t position, index;
  };
  // What the next operation of a stream waits for.
  struct StreamEnd {
    int last = -1;
    std::vector<int> others;
  };

  void collect() {
    const auto add = [&](Event::Kind kind, int64_t position, size_t index) {
      events_.push_back({kind, position, static_cast<int64_t>(index)});
    };
    for (size_t i = 0; i < trace_.operations.size(); ++i) add(Event::Kind::operation, trace_.operations[i].position, i);
    for (size_t i = 0; i < trace_.communications.size(); ++i) {
      const auto& c = trace_.communications[i];
      if (c.kind == "barrier") continue;
      add(Event::Kind::start, c.start, i);
      if (c.wait != Trace::kNever) add(Event::Kind::wait, c.wait, i);
    }
    for (size_t i = 0; i < trace_.stream_waits.size(); ++i) {
      add(Event::Kind::point, trace_.stream_waits[i].until, i);
      add(Event::Kind::join, trace_.stream_waits[i].position, i);
    }
    // A point lies before what has its position.
    std::sort(events_.begin(), events_.end(),
              [](const Event& a, const Event& b) { return std::pair(a.position, a.kind) < std::pair(b.position, b.kind); });
  }

  std::vector<int> before(int64_t stream) {
    auto& end = streams_[stream];
    auto after = end.others;
    if (end.last >= 0) after.push_back(end.last);
    std::sort(after.begin(), after.end());
    after.erase(std::unique(after.begin(), after.end()), after.end());
    return after;
  }

  void compute(const Trace::Operation& o) {
    const auto stream = o.stream == 0 ? schedule::Stream::compute : schedule::Stream::side;
    auto name = std::string(trace_.name_of(o));
    if (name.starts_with("aten::")) name = name.substr(6);
    if (works_.of(o).kind == plan::WorkKind::linear_attention && !name.starts_with(kLinearAttention))
      name = kLinearAttention + (": " + name);
    // The one before on its stream goes without saying.
    auto& end = streams_[o.stream];
    end = {list_.add(std::move(name), stream, work_of(o), std::move(end.others)), {}};
  }

  void start(size_t i) {
    const auto& c = trace_.communications[i];
    auto message = plan::message_of(c);
    const bool is_send = message.kind == schedule::Kind::send, is_receive = message.kind == schedule::Kind::receive;
    if (is_send || is_receive) message.group = {.first = rank_};
    const auto stream = is_send ? schedule::Stream::sending : is_receive ? schedule::Stream::receiving : schedule::Stream::collective;
    operation_of_[i] = list_.add(c.kind, stream, message, before(c.stream));
  }

  void wait(size_t i) { streams_[trace_.communications[i].wait_stream].others.push_back(operation_of_[i]); }

  void join(int64_t stream, const StreamEnd& other) {
    auto& others = streams_[stream].others;
    others.insert(others.end(), other.others.begin(), other.others.end());
    if (other.last >= 0) others.push_back(other.last);
  }

  schedule::Work work_of(const Trace::Operation& o) const {
    const plan::PassOperation operation{
        .name = std::string(trace_.name_of(o)), .inputs = trace_.inputs_of(o), .outputs = trace_.outputs_of(o), .flops = o.flops};
    if (const auto s = plan::matmul_sizes(operation)) return schedule::Gemm{s->m, s->n, s->k, s->groups};
    const int64_t bytes = o.read_bytes + o.written_bytes;
    if (operation.name.starts_with(kLinearAttention)) return schedule::StateWork{o.flops, bytes};
    const bool is_backward = operation.name == "attention.backward";
    if (!is_backward && operation.name != "attention") return schedule::Move{bytes};
    const auto& q = operation.inputs[is_backward ? 1 : 0].sizes;  // [batch, queries, heads, head_dim]
    const auto& k = operation.inputs[is_backward ? 2 : 1].sizes;
    return schedule::Attention{.pairs = o.flops / (is_backward ? 8.0 : 4.0) / static_cast<double>(q[2] * q[3]),
                               .heads = q[2],
                               .head_dim = q[3],
                               .calls = 1,
                               .queries = q[1],
                               .keys = k[1],
                               .backward = is_backward};
  }

  const Trace& trace_;
  const plan::WorksOfScopes works_;
  const int rank_;
  std::vector<int> operation_of_;  // by communication
  std::vector<Event> events_;
  std::map<int64_t, StreamEnd> streams_;
  std::map<int64_t, StreamEnd> points_;  // by stream wait
  schedule::OperationList list_;
};

}  // namespace

schedule::OperationList operations_of(const Trace& trace, int rank) { return ListWriter(trace, rank).write(); }

LayerProgram trace_layer(const Layout& layout, device::Target target) {
  schedule::check(layout);
  LayerProgram out;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    const int like = representative_of(layout, rank);
    if (like != rank) {
      out.program.ranks.push_back(moved(out.program.ranks[static_cast<size_t>(like)], rank - like));
      continue;
    }
    const auto trace = trace_rank(layout, rank, target);
    out.peak_bytes = std::max(out.peak_bytes, trace.peak_bytes);
    out.program.ranks.push_back(operations_of(trace, rank));
  }
  return out;
}

}  // namespace ingot::bench
