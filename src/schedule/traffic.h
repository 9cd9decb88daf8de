// What a rank says to the others over a whole list of operations, counted as comm/operation.h counts: exact, independent of any machine.
#pragma once

#include <map>

#include "schedule/operation_list.h"

namespace ingot::schedule {

struct KindTraffic {
  int64_t calls = 0, sent_bytes = 0, received_bytes = 0;
  bool operator==(const KindTraffic&) const = default;
};

/// By kind; "send_receive" for messages, whose calls are the larger of those sent and those received.
using Traffic = std::map<std::string, KindTraffic>;

/// The names under which reports list traffic, in order.
const std::vector<std::string>& traffic_kinds();

/// (n = bytes, p = size) all_reduce 2n(p-1)/p each way, by whole elements; reduce_scatter and all_gather n(p-1)/p; broadcast n from the
/// root to each other, reduce n from each other to the root; all_to_all n(p-1)/p.
KindTraffic traffic_of(const Communication& message, int rank);
Traffic traffic_of(const OperationList& list, int rank);
/// The largest over ranks, of each number by itself.
Traffic traffic_of(const Program& program);

int64_t sent_bytes(const Traffic& traffic);
int64_t received_bytes(const Traffic& traffic);

}  // namespace ingot::schedule
