#include "schedule/operation_list.h"

namespace ingot::schedule {

std::string name_of(Kind kind) {
  static constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                           "reduce",     "all_to_all",     "send",       "receive"};
  return kNames[static_cast<size_t>(kind)];
}

std::string name_of(Stream stream) {
  static constexpr const char* kNames[] = {"compute", "side", "collective", "sending", "receiving"};
  return kNames[static_cast<size_t>(stream)];
}

int OperationList::add(std::string name, Stream stream, Work work, std::vector<int> after) {
  operations_.push_back({std::move(name), std::move(work), stream, std::move(after)});
  return size() - 1;
}

}  // namespace ingot::schedule
