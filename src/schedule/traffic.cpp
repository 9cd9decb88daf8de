#include "schedule/traffic.h"

#include <algorithm>

namespace ingot::schedule {

const std::vector<std::string>& traffic_kinds() {
  static const std::vector<std::string> kinds = {"broadcast", "all_gather", "reduce_scatter", "all_reduce",
                                                 "reduce",    "all_to_all", "send_receive"};
  return kinds;
}

KindTraffic traffic_of(const Communication& m, int rank) {
  const int64_t p = m.group.size, n = m.bytes;
  switch (m.kind) {
    case Kind::send: return {1, n, 0};
    case Kind::receive: return {1, 0, n};
    default: break;
  }
  if (p < 2) return {};
  switch (m.kind) {
    case Kind::all_reduce: {
      // Sends the slices of the others, receives its own slice from each of them; then the other way round.
      const int64_t elements = n / m.element_bytes, index = (rank - m.group.first) / m.group.stride;
      const int64_t own = elements * (index + 1) / p - elements * index / p;
      const int64_t each_way = (elements - own + own * (p - 1)) * m.element_bytes;
      return {1, each_way, each_way};
    }
    case Kind::broadcast: return rank == m.peer ? KindTraffic{1, n * (p - 1), 0} : KindTraffic{1, 0, n};
    case Kind::reduce: return rank == m.peer ? KindTraffic{1, 0, n * (p - 1)} : KindTraffic{1, n, 0};
    default: return {1, n / p * (p - 1), n / p * (p - 1)};
  }
}

Traffic traffic_of(const OperationList& list, int rank) {
  Traffic sums;
  int64_t sent = 0, received = 0;
  for (const auto& operation : list.operations()) {
    const auto* message = std::get_if<Communication>(&operation.work);
    if (!message) continue;
    const auto more = traffic_of(*message, rank);
    if (more.calls == 0) continue;
    const bool is_send = message->kind == Kind::send, is_message = is_send || message->kind == Kind::receive;
    auto& sum = sums[is_message ? "send_receive" : name_of(message->kind)];
    sum.sent_bytes += more.sent_bytes;
    sum.received_bytes += more.received_bytes;
    if (is_message) sum.calls = std::max(is_send ? ++sent : sent, is_send ? received : ++received);
    else ++sum.calls;
  }
  return sums;
}

Traffic traffic_of(const Program& program) {
  Traffic largest;
  for (size_t rank = 0; rank < program.ranks.size(); ++rank)
    for (const auto& [kind, traffic] : traffic_of(program.ranks[rank], static_cast<int>(rank))) {
      auto& most = largest[kind];
      most.calls = std::max(most.calls, traffic.calls);
      most.sent_bytes = std::max(most.sent_bytes, traffic.sent_bytes);
      most.received_bytes = std::max(most.received_bytes, traffic.received_bytes);
    }
  return largest;
}

int64_t sent_bytes(const Traffic& traffic) {
  int64_t sum = 0;
  for (const auto& [kind, of_kind] : traffic) sum += of_kind.sent_bytes;
  return sum;
}

int64_t received_bytes(const Traffic& traffic) {
  int64_t sum = 0;
  for (const auto& [kind, of_kind] : traffic) sum += of_kind.received_bytes;
  return sum;
}

}  // namespace ingot::schedule
