#include "schedule/operation_list.h"

#include <algorithm>

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

Buffer OperationList::buffer(int64_t bytes) {
  buffers_.push_back({.bytes = bytes});
  accesses_.emplace_back();
  return static_cast<Buffer>(buffers_.size()) - 1;
}

Buffer OperationList::resident(int64_t bytes) {
  const auto made = input(bytes);
  keep(made);
  return made;
}

Buffer OperationList::input(int64_t bytes) {
  const auto made = buffer(bytes);
  buffers_.back().is_resident = true;
  return made;
}

int OperationList::add(std::string name, Stream stream, Work work, const std::vector<Buffer>& reads, const std::vector<Buffer>& writes) {
  const int index = size();
  std::vector<int> after;
  const auto wait_for = [&](int operation) {
    if (operation >= 0 && operations_[static_cast<size_t>(operation)].stream != stream) after.push_back(operation);
  };
  if (stream != Stream::compute) wait_for(last_compute_);
  for (const auto read : reads) wait_for(accesses_[static_cast<size_t>(read)].writer);
  for (const auto write : writes) {
    auto& access = accesses_[static_cast<size_t>(write)];
    wait_for(access.writer);
    for (const int reader : access.readers) wait_for(reader);
  }
  for (const auto read : reads) accesses_[static_cast<size_t>(read)].readers.push_back(index);
  for (const auto write : writes) accesses_[static_cast<size_t>(write)] = {index, {}};
  for (const auto* used : {&reads, &writes})
    for (const auto buffer : *used) {
      auto& users = buffers_[static_cast<size_t>(buffer)].users;
      if (users.empty() || users.back() != index) users.push_back(index);
    }
  std::sort(after.begin(), after.end());
  after.erase(std::unique(after.begin(), after.end()), after.end());
  operations_.push_back({std::move(name), std::move(work), stream, std::move(after)});
  if (stream == Stream::compute) last_compute_ = index;
  return index;
}

void OperationList::drop_before(int index) {
  operations_.erase(operations_.begin(), operations_.begin() + index);
  for (auto& operation : operations_) {
    std::erase_if(operation.after, [&](int before) { return before < index; });
    for (auto& before : operation.after) before -= index;
  }
  for (auto& buffer : buffers_) {
    const bool was_there = buffer.is_resident || (!buffer.users.empty() && buffer.users.front() < index);
    const bool was_kept = buffer.is_kept;
    std::erase_if(buffer.users, [&](int user) { return user < index; });
    for (auto& user : buffer.users) user -= index;
    if (was_there && buffer.users.empty() && !was_kept) buffer.bytes = 0;
    buffer.is_resident = was_there;
  }
  accesses_.assign(buffers_.size(), {});
  last_compute_ = -1;
}

}  // namespace ingot::schedule
