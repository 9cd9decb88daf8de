#include "comm/group.h"

#include <ATen/core/grad_mode.h>

#include <functional>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/work_scope.h"
#include "comm/stream_transfers.h"

namespace ingot::comm {
namespace {

using base::CommError;

class Waiting {
 public:
  Waiting(Counters& counters, Heartbeat* heartbeat) : counters_(counters) {
    if (heartbeat) seen_.emplace(*heartbeat);
  }
  ~Waiting() { counters_.add_wait(std::chrono::duration<double>(Clock::now() - since_).count()); }
  Waiting(const Waiting&) = delete;

 private:
  Counters& counters_;
  Clock::time_point since_ = Clock::now();
  std::optional<Heartbeat::Waiting> seen_;
};

// Marks the ledger's entry when the operation is over, and puts the step into messages.
class Recorded : public Pending {
 public:
  Recorded(Work work, std::string what, Counters& counters, Ledger& ledger, Heartbeat* heartbeat, uint64_t ticket)
      : work_(std::move(work)), what_(std::move(what)), counters_(counters), ledger_(ledger), heartbeat_(heartbeat), ticket_(ticket) {}
  void wait() override {
    const base::WorkScope scope("communication", base::owns(base::WorkKind::communication));
    const Waiting waiting(counters_, heartbeat_);
    const auto operation = work_;
    try {
      work_.wait();
    } catch (const CommError& failure) {
      throw CommError("{}: {}", what_, failure.what());
    }
    if (operation.is_done()) ledger_.finish(ticket_);
    else ledger_.finish_when(ticket_, [operation] { return operation.is_done(); });
  }
  bool is_done() override {
    if (!work_.is_done()) return false;
    ledger_.finish(ticket_);
    return true;
  }

 private:
  Work work_;
  std::string what_;
  Counters& counters_;
  Ledger& ledger_;
  Heartbeat* heartbeat_;
  uint64_t ticket_;
};

// What ranks with the same to do have in common. Rows of an all_to_all are each rank's own, a text's length is each group's.
uint64_t identity_of(const std::string& axis, const Operation& o) {
  uint64_t identity = std::hash<std::string>()(axis);
  for (const auto part : {static_cast<uint64_t>(o.kind), static_cast<uint64_t>(o.dtype()), static_cast<uint64_t>(o.reduction),
                          o.kind == Kind::all_to_all || o.kind == Kind::broadcast ? 0 : static_cast<uint64_t>(o.bytes())})
    identity = (identity ^ part) * 0x9E3779B97F4A7C15u;
  return identity | 1;  // 0 is none
}

int64_t sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

}  // namespace

Group::Group(std::string axis, std::vector<int> members, int rank, std::unique_ptr<Backend> backend, Counters& counters, Ledger& ledger,
             bool in_background)
    : axis_(std::move(axis)),
      members_(std::move(members)),
      rank_(rank),
      backend_(std::move(backend)),
      place_(fmt::format("axis {} (ranks {})", axis_, members_)),
      counters_(counters),
      ledger_(ledger),
      heartbeat_(in_background ? nullptr : &ledger.heartbeat()) {}

Group::~Group() = default;

void Group::check(const at::Tensor& t, Kind kind) const {
  if (!t.defined()) throw CommError("{} on axis {}: undefined tensor", name_of(kind), axis_);
  if (!t.is_contiguous()) throw CommError("{} on axis {}: a tensor of shape {} is not contiguous", name_of(kind), axis_, t.sizes());
  switch (t.scalar_type()) {
    case at::kDouble:
    case at::kFloat:
    case at::kBFloat16:
    case at::kLong:
    case at::kInt:
    case at::kByte: return;
    default: throw CommError("{} on axis {}: no collective takes {}", name_of(kind), axis_, at::toString(t.scalar_type()));
  }
}

Operation Group::all_reduce_of(const at::Tensor& t, Reduction reduction) const {
  check(t, Kind::all_reduce);
  return {.kind = Kind::all_reduce, .input = t, .output = t, .reduction = reduction};
}

Operation Group::reduce_scatter_of(const at::Tensor& output, const at::Tensor& input, Reduction reduction) const {
  check(input, Kind::reduce_scatter);
  check(output, Kind::reduce_scatter);
  if (input.numel() != output.numel() * size() || input.scalar_type() != output.scalar_type())
    throw CommError("reduce_scatter on axis {} of {} ranks: {} elements cannot become {} on each", axis_, size(), input.numel(),
                    output.numel());
  return {.kind = Kind::reduce_scatter, .input = input, .output = output, .reduction = reduction};
}

Operation Group::all_gather_of(const at::Tensor& output, const at::Tensor& input) const {
  check(input, Kind::all_gather);
  check(output, Kind::all_gather);
  if (output.numel() != input.numel() * size() || input.scalar_type() != output.scalar_type())
    throw CommError("all_gather on axis {} of {} ranks: {} elements of each do not make {}", axis_, size(), input.numel(), output.numel());
  return {.kind = Kind::all_gather, .input = input, .output = output};
}

Operation Group::broadcast_of(const at::Tensor& t, int root) const {
  check(t, Kind::broadcast);
  if (root < 0 || root >= size()) throw CommError("broadcast on axis {} from rank {}: it has ranks 0 to {}", axis_, root, size() - 1);
  return {.kind = Kind::broadcast, .input = t, .output = t, .peer = root};
}

Operation Group::reduce_of(const at::Tensor& t, int root, Reduction reduction) const {
  check(t, Kind::reduce);
  if (root < 0 || root >= size()) throw CommError("reduce on axis {} to rank {}: it has ranks 0 to {}", axis_, root, size() - 1);
  return {.kind = Kind::reduce, .input = t, .output = t, .reduction = reduction, .peer = root};
}

Operation Group::all_to_all_of(const at::Tensor& output, const std::vector<int64_t>& output_rows, const at::Tensor& input,
                               const std::vector<int64_t>& input_rows) const {
  check(input, Kind::all_to_all);
  check(output, Kind::all_to_all);
  Operation o{.kind = Kind::all_to_all, .input = input, .output = output, .input_counts = input_rows, .output_counts = output_rows};
  for (auto [tensor, counts] : {std::pair{&input, &o.input_counts}, {&output, &o.output_counts}}) {
    const int64_t rows = tensor->dim() == 0 ? 1 : tensor->size(0);
    const bool is_negative = std::any_of(counts->begin(), counts->end(), [](int64_t c) { return c < 0; });
    if (static_cast<int>(counts->size()) != size() || sum(*counts) != rows || is_negative)
      throw CommError("all_to_all on axis {} of {} ranks: the rows {} are not those of a tensor of shape {}", axis_, size(), *counts,
                      tensor->sizes());
    int64_t row = 1;
    for (int64_t dim = 1; dim < tensor->dim(); ++dim) row *= tensor->size(dim);
    for (auto& count : *counts) count *= row;
  }
  if (input.scalar_type() != output.scalar_type() ||
      o.input_counts[static_cast<size_t>(rank_)] != o.output_counts[static_cast<size_t>(rank_)])
    throw CommError("all_to_all on axis {}: rank {} sends itself {} elements and expects {}", axis_, rank_,
                    o.input_counts[static_cast<size_t>(rank_)], o.output_counts[static_cast<size_t>(rank_)]);
  return o;
}

Operation Group::message_of(Kind kind, const at::Tensor& t, int peer) const {
  check(t, kind);
  if (peer < 0 || peer >= size() || peer == rank_)
    throw CommError("{} on axis {}: rank {} has no peer {} among {} ranks", name_of(kind), axis_, rank_, peer, size());
  Operation o{.kind = kind, .peer = peer};
  (kind == Kind::send ? o.input : o.output) = t;
  return o;
}

Work Group::start(Operation operation, bool blocking) {
  const at::NoGradGuard no_grad;
  const bool is_message = operation.kind == Kind::send || operation.kind == Kind::receive;
  operation.sequence = is_message ? ++messages_ : ++collectives_;
  if (!backend_) {  // alone
    if (operation.kind != Kind::barrier && operation.output.data_ptr() != operation.input.data_ptr())
      operation.output.view(-1).copy_(operation.input.view(-1));
    return {};
  }
  if (!StreamTransfers::takes(operation)) return start_recorded(std::move(operation), blocking);
  if (!transfers_) transfers_ = std::make_unique<StreamTransfers>();
  return transfers_->start(std::move(operation), rank_, [&](Operation o) { return start_recorded(std::move(o), /*blocking=*/false); });
}

Work Group::start_recorded(Operation operation, bool blocking) {
  const base::WorkScope scope("communication", base::owns(base::WorkKind::communication));
  counters_.add(axis_, operation.kind, traffic_of(operation, rank_, size()));
  const auto ticket = ledger_.start(axis_, members_, operation);
  const int64_t step = ledger_.step();
  auto what = fmt::format("{} on {}, step {}", describe(operation), place_, step);
  if (heartbeat_) {
    operation.step = step;
    const bool is_message = operation.kind == Kind::send || operation.kind == Kind::receive;
    is_message ? heartbeat_->set_message(what, members_[static_cast<size_t>(operation.peer)])
               : heartbeat_->set_collective(what, identity_of(axis_, operation));
  }
  Work started;
  try {
    std::optional<Waiting> waiting;  // it may be carried out at once, by this thread
    if (blocking) waiting.emplace(counters_, heartbeat_);
    started = backend_->start(std::move(operation), blocking);
  } catch (const CommError& failure) {
    throw CommError("{}: {}", what, failure.what());
  }
  return Work(std::make_shared<Recorded>(std::move(started), std::move(what), counters_, ledger_, heartbeat_, ticket));
}

namespace {

at::Tensor bytes_of(const std::string& text) {
  auto bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), reinterpret_cast<char*>(bytes.data_ptr<uint8_t>()));
  return bytes;
}

}  // namespace

// Up a binomial tree, log2(ranks) deep: counted from the root, rank r gathers those of r + 1, r + 2 …, as many as the lowest bit of r says,
// and passes them on with its own in one message. Texts lie behind one another in that order, with their lengths before them.
std::vector<std::string> gather_texts(Group& group, const std::string& text, int root) {
  const int ranks = group.size(), own = (group.rank() - root + ranks) % ranks;
  const auto rank_of = [&](int from_root) { return (from_root + root) % ranks; };
  std::vector<int64_t> lengths = {static_cast<int64_t>(text.size())};
  std::string all = text;
  for (int step = 1; step < ranks; step *= 2) {
    if (own % (2 * step) != 0) {  // all that is below is here
      const auto head = at::tensor(lengths, at::kLong);
      group.send(head, rank_of(own - step));
      if (!all.empty()) group.send(bytes_of(all), rank_of(own - step));
      return {};
    }
    if (own + step >= ranks) continue;
    const int from = rank_of(own + step);
    const auto head = at::empty({std::min(step, ranks - own - step)}, at::kLong);
    group.receive(head, from);
    int64_t total = 0;
    for (int64_t i = 0; i < head.numel(); ++i) {
      lengths.push_back(head[i].item<int64_t>());
      total += lengths.back();
    }
    if (total == 0) continue;
    const auto bytes = at::empty({total}, at::kByte);
    group.receive(bytes, from);
    all.append(reinterpret_cast<const char*>(bytes.data_ptr<uint8_t>()), static_cast<size_t>(total));
  }
  std::vector<std::string> texts(static_cast<size_t>(ranks));
  size_t at = 0;
  for (int from_root = 0; from_root < ranks; ++from_root) {
    const auto length = static_cast<size_t>(lengths[static_cast<size_t>(from_root)]);
    texts[static_cast<size_t>(rank_of(from_root))] = all.substr(at, length);
    at += length;
  }
  return texts;
}

std::string scatter_text(Group& group, const std::vector<std::string>& texts, int root) {
  if (group.size() == 1) return texts.at(0);
  const auto ranks = static_cast<size_t>(group.size());
  std::vector<int64_t> arriving(ranks, 0), leaving(ranks, 0);
  std::string all;
  if (group.rank() == root) {
    if (texts.size() != ranks) throw CommError("{} texts for {} ranks", texts.size(), ranks);
    for (size_t r = 0; r < ranks; ++r) {
      leaving[r] = static_cast<int64_t>(texts[r].size());
      all += texts[r];
    }
  }
  const auto sizes = at::zeros({group.size()}, at::kLong);
  for (size_t r = 0; r < ranks; ++r) sizes[static_cast<int64_t>(r)] = leaving[r];
  group.broadcast(sizes, root);
  arriving[static_cast<size_t>(root)] = sizes[group.rank()].item<int64_t>();
  const auto own = at::empty({arriving[static_cast<size_t>(root)]}, at::kByte);
  group.all_to_all(own, arriving, bytes_of(all), leaving);
  const auto* data = reinterpret_cast<const char*>(own.data_ptr<uint8_t>());
  return {data, data + own.numel()};
}

std::string broadcast_text(Group& group, const std::string& text, int root) {
  if (group.size() == 1) return text;
  const auto length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  group.broadcast(length, root);
  const auto bytes = group.rank() == root ? bytes_of(text) : at::empty({length.item<int64_t>()}, at::kByte);
  group.broadcast(bytes, root);
  const auto* data = reinterpret_cast<const char*>(bytes.data_ptr<uint8_t>());
  return {data, data + bytes.numel()};
}

void Group::all_reduce(const at::Tensor& t, Reduction reduction) { start(all_reduce_of(t, reduction), true).wait(); }
void Group::reduce_scatter(const at::Tensor& out, const at::Tensor& in, Reduction reduction) {
  start(reduce_scatter_of(out, in, reduction), true).wait();
}
void Group::all_gather(const at::Tensor& out, const at::Tensor& in) { start(all_gather_of(out, in), true).wait(); }
void Group::broadcast(const at::Tensor& t, int root) { start(broadcast_of(t, root), true).wait(); }
void Group::reduce(const at::Tensor& t, int root, Reduction reduction) { start(reduce_of(t, root, reduction), true).wait(); }
void Group::all_to_all(const at::Tensor& out, const std::vector<int64_t>& out_rows, const at::Tensor& in,
                       const std::vector<int64_t>& in_rows) {
  start(all_to_all_of(out, out_rows, in, in_rows), true).wait();
}
void Group::all_to_all(const at::Tensor& out, const at::Tensor& in) {
  if (in.dim() == 0 || in.size(0) % size() != 0)
    throw CommError("all_to_all on axis {}: the rows of a tensor of shape {} do not divide by {} ranks", axis_, in.sizes(), size());
  const std::vector<int64_t> rows(static_cast<size_t>(size()), in.size(0) / size());
  all_to_all(out, rows, in, rows);
}
void Group::send(const at::Tensor& t, int to) { start(message_of(Kind::send, t, to), true).wait(); }
void Group::receive(const at::Tensor& t, int from) { start(message_of(Kind::receive, t, from), true).wait(); }
void Group::barrier() { start({.kind = Kind::barrier}, true).wait(); }

Work Group::start_all_reduce(const at::Tensor& t, Reduction reduction) { return start(all_reduce_of(t, reduction), false); }
Work Group::start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, Reduction reduction) {
  return start(reduce_scatter_of(out, in, reduction), false);
}
Work Group::start_all_gather(const at::Tensor& out, const at::Tensor& in) { return start(all_gather_of(out, in), false); }
Work Group::start_broadcast(const at::Tensor& t, int root) { return start(broadcast_of(t, root), false); }
Work Group::start_reduce(const at::Tensor& t, int root, Reduction reduction) { return start(reduce_of(t, root, reduction), false); }
Work Group::start_all_to_all(const at::Tensor& out, const std::vector<int64_t>& out_rows, const at::Tensor& in,
                             const std::vector<int64_t>& in_rows) {
  return start(all_to_all_of(out, out_rows, in, in_rows), false);
}
Work Group::start_send(const at::Tensor& t, int to) { return start(message_of(Kind::send, t, to), false); }
Work Group::start_receive(const at::Tensor& t, int from) { return start(message_of(Kind::receive, t, from), false); }

}  // namespace ingot::comm
