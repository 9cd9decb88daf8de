#include "plan/priced_pass.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <string_view>

#include "layers/cost.h"
#include "optim/operators.h"
#include "plan/work_names.h"

namespace ingot::plan {
namespace {

using device::Trace;

double d(int64_t x) { return static_cast<double>(x); }

Pass pass_of(const PassOperation& op, const MatmulSizes& s, const std::vector<PassOperation>& siblings) {
  if (!op.is_backward && op.kind != WorkKind::head) return Pass::forward;
  for (const auto& sibling : siblings) {
    if (&sibling == &op) break;                                                 // of a head, which makes its gradients in the forward pass
    const auto f = sibling.is_backward ? std::nullopt : matmul_sizes(sibling);  // [rows, in] x [in, out]
    if (!f) continue;
    if (f->m == s.m && f->n == s.k && f->k == s.n) return Pass::grad_input;
    if (f->n == s.m && f->m == s.k && f->k == s.n) return Pass::grad_weight;
  }
  return Pass::forward;
}

// Keys that a query of a row sees at most, from the pairs that are visible: the window of a causal mask.
int64_t window_of(double pairs, int64_t seq) {
  int64_t low = 1, high = seq;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    layers::visible_pairs(seq, middle) < pairs ? low = middle + 1 : high = middle;
  }
  return low == seq ? 0 : low;
}

double attention_s(const PassOperation& op, const Rates& rates, const std::vector<int64_t>& documents) {
  const bool is_backward = op.name.ends_with(".backward");
  const auto& q = op.inputs[is_backward ? 1 : 0].sizes;  // [batch, queries, heads, head_dim]
  const auto& k = op.inputs[is_backward ? 2 : 1].sizes;
  const auto& v = op.inputs[is_backward ? 3 : 2].sizes;
  if (op.flops == 0) return 0;
  const double flops = is_backward ? op.flops / layers::kBackwardFactor : op.flops;
  const double pairs = flops / (2 * d(q[0] * q[2] * (q[3] + v[3])));
  if (documents.empty() || q[1] != k[1]) return rates.attention_s(flops, pairs / d(q[1]), q[3], is_backward);
  const int64_t window = window_of(pairs, q[1]);
  double tokens = 0, seconds = 0;
  for (const int64_t length : documents) {
    const double own = layers::visible_pairs(length, window);
    tokens += d(length);
    seconds += rates.attention_s(flops * own / pairs, own / d(length), q[3], is_backward);
  }
  return seconds * d(q[1]) / tokens;  // of as many rows as the operation has
}

// Q and R by LAPACK's panels, at a quarter of the rate of GEMMs of their size: 58 of 250 GFLOP/s were measured on a Zen 5.
double qr_s(const PassOperation& op, const Rates& rates) {
  const auto& sizes = op.inputs[0].sizes;  // [..., rows, columns]
  const int64_t columns = sizes.back(), rows = sizes[sizes.size() - 2];
  const int64_t matrices = std::accumulate(sizes.begin(), sizes.end() - 2, int64_t{1}, std::multiplies<>());
  if (matrices * rows * columns == 0) return 0;
  const double flops = 4 * d(rows * columns * columns) - d(columns * columns * columns) * 4 / 3;
  return d(matrices) * 4 * flops / rates.gemm_rate(Pass::forward, rows, columns, columns, /*wide=*/true);
}

// Operations and communication of one rank in their order, each axis and direction a stream of its own.
class Clock {
 public:
  Clock(const PassSegment& segment, const Transport& transport) : segment_(segment), transport_(transport) {}

  void play(const std::vector<double>& seconds, SegmentTime& time) {
    using Kind = PassSegment::Event::Kind;
    ends_.assign(segment_.communications.size(), -1);
    for (const auto& event : segment_.events) {
      const auto index = static_cast<size_t>(event.index);
      if (event.kind == Kind::operation) now_s_ += seconds[index];
      else if (event.kind == Kind::start) start(index, time);
      else wait(index, time);
    }
    // What computes beside communication takes longer.
    for (const auto& [axis, hidden_s] : hidden_s_) share_of(axis, time) += transport_.slowdown * hidden_s;
    for (const auto& [axis, moved] : moved_) share_of(axis, time) += std::max(moved.sent_s, moved.received_s);
  }

 private:
  static double& share_of(const std::string& axis, SegmentTime& time) {
    return axis.starts_with("expert") ? time.experts_s : time.blocks_s;
  }

  void start(size_t index, SegmentTime& time) {
    const auto& c = segment_.communications[index];
    const auto duration = transport_.duration(message_of(c));
    if (transport_.cores_communicate) {
      // Sending and receiving go on at once.
      auto& moved = moved_[c.axis];
      (c.kind == "receive" ? moved.received_s : moved.sent_s) += duration.busy_s;
      return;
    }
    auto& free_s = streams_[c.kind == "send" || c.kind == "receive" ? c.axis + c.kind : c.axis];
    const double begin_s = std::max(now_s_, free_s);
    free_s = begin_s + duration.busy_s;
    ends_[index] = free_s + duration.latency_s;
    busy_s_[index] = duration.busy_s;
    if (c.is_blocking) wait(index, time);
  }

  void wait(size_t index, SegmentTime& time) {
    if (ends_[index] < 0) return;
    const auto& c = segment_.communications[index];
    const double exposed_s = std::max(0.0, ends_[index] - now_s_);
    share_of(c.axis, time) += exposed_s;
    if (c.kind != "receive") hidden_s_[c.axis] += std::max(0.0, busy_s_[index] - exposed_s);
    now_s_ += exposed_s;
    ends_[index] = -1;
  }

  const PassSegment& segment_;
  const Transport& transport_;
  double now_s_ = 0;
  std::vector<double> ends_;
  std::map<size_t, double> busy_s_;
  std::map<std::string, double> streams_, hidden_s_;
  struct Moved {
    double sent_s = 0, received_s = 0;  // collectives count as sent
  };
  std::map<std::string, Moved> moved_;  // by the cores themselves
};

SegmentTime price(const PassSegment& segment, const std::vector<PassOperation>& siblings, const Rates& rates, const Transport& transport,
                  const std::vector<int64_t>& documents) {
  SegmentTime time;
  std::vector<double> seconds;
  for (const auto& op : segment.operations) {
    seconds.push_back(rates.within_steps().of(op.kind) * price_of(op, siblings, rates, documents));
    time.kinds[static_cast<size_t>(op.kind)] += d(op.calls) * seconds.back();
  }
  if (transport.duration && !segment.communications.empty()) Clock(segment, transport).play(seconds, time);
  return time;
}

}  // namespace

double SegmentTime::compute_s() const { return std::accumulate(kinds.begin(), kinds.end(), 0.0); }

SegmentTime& SegmentTime::operator+=(const SegmentTime& other) {
  for (size_t i = 0; i < kinds.size(); ++i) kinds[i] += other.kinds[i];
  blocks_s += other.blocks_s;
  experts_s += other.experts_s;
  return *this;
}

std::optional<MatmulSizes> matmul_sizes(const PassOperation& op) {
  if (!is_gemm(op.name)) return std::nullopt;
  const bool adds = op.name == "aten::addmm" || op.name == "aten::baddbmm" || op.name == "aten::addmv";
  const size_t first = adds ? 1 : 0;
  if (op.inputs.size() < first + 2) return std::nullopt;
  const auto &a = op.inputs[first].sizes, &b = op.inputs[first + 1].sizes;
  // Of groups that share out the rows.
  if (op.name == "grouped_gemm" || op.name == "scaled_grouped_gemm")
    return MatmulSizes{b[0], a[0] / std::max<int64_t>(1, b[0]), b[2], a[1]};
  if (op.name == "grouped_gemm.gradient") return MatmulSizes{op.outputs[0].sizes[0], a[1], b[1], a[0] / op.outputs[0].sizes[0]};
  if (op.name == "scaled_grouped_gemm.gradient") return MatmulSizes{op.outputs[0].sizes[0], a[0], b[0], a[1] / op.outputs[0].sizes[0]};
  if (a.size() == 2 && b.size() == 2) return MatmulSizes{1, a[0], b[1], a[1]};
  if (a.size() == 3 && b.size() == 3) return MatmulSizes{a[0], a[1], b[2], a[2]};
  return std::nullopt;
}

double price_of(const PassOperation& op, const std::vector<PassOperation>& siblings, const Rates& rates,
                const std::vector<int64_t>& documents) {
  if (const auto s = matmul_sizes(op)) {
    if (s->m == 0 || s->n == 0 || s->k == 0) return 0;
    const double flops = 2 * d(s->groups) * d(s->m) * d(s->n) * d(s->k);
    return flops / rates.gemm_rate(pass_of(op, *s, siblings), s->m, s->n, s->k, c10::elementSize(op.inputs.back().dtype) > 2) +
           rates.operation_s() / 3;
  }
  if (op.name == "aten::linalg_qr") return qr_s(op, rates);
  if (op.name == "attention" || op.name == "attention.backward") return attention_s(op, rates, documents);
  if (const auto size = kernels::measured_size(optim::operators(), op.name, op.inputs, op.outputs))
    if (const auto known = rates.kernel_s(std::string(size->name), size->rows, size->width, size->is_backward, d(op.moved_bytes())))
      return *known;
  return rates.move_s(d(op.moved_bytes()));
}

schedule::Communication message_of(const Trace::Communication& c) {
  using schedule::Kind;
  schedule::Communication message{
      .group = {c.first_rank, c.ranks, c.stride}, .bytes = c.bytes, .element_bytes = c.element_bytes, .peer = c.peer};
  for (const auto kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::broadcast, Kind::reduce, Kind::all_to_all,
                          Kind::send, Kind::receive})
    if (schedule::name_of(kind) == c.kind) message.kind = kind;
  return message;
}

PassTime PassPrices::time_of(const BlockPass& block, const std::vector<int64_t>& documents) {
  if (documents != documents_) known_.clear();
  documents_ = documents;
  const auto [at, is_new] = known_.try_emplace(&block);
  if (is_new) {
    const auto& forward = block.forward.operations;
    at->second = {price(block.forward, forward, rates_, transport_, documents),
                  price(block.backward, forward, rates_, transport_, documents)};
  }
  return at->second;
}

PassTime PassPrices::of(const models::Model& part, const PassShape& shape, const std::vector<int64_t>& documents) {
  const auto& pass = traces_.of(part, shape);
  PassTime all;
  pass.visit(span_of(part), [&](const BlockPass& block) {
    const auto time = time_of(block, documents);
    all.forward += time.forward;
    all.backward += time.backward;
  });
  return all;
}

}  // namespace ingot::plan
