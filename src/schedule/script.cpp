#include "schedule/script.h"

namespace ingot::schedule {

Group Script::tensor_group() const {
  const int size = layout_.tensor_size();
  return {.first = rank_ / size * size, .size = size, .stride = 1};
}

Group Script::sequence_group() const {
  const int stride = layout_.tensor_size();
  return {.first = rank_ % stride, .size = layout_.sequence_size(), .stride = stride};
}

Buffer Script::compute(const char* name, Work work, const Buffers& reads, int64_t bytes) {
  const auto made = list_.buffer(bytes);
  list_.add(name, Stream::compute, std::move(work), reads, {made});
  return made;
}

void Script::compute_into(const char* name, Work work, const Buffers& reads, Buffer into) {
  list_.add(name, Stream::compute, std::move(work), reads, {into});
}

void Script::collective(const char* name, Kind kind, const Group& group, int64_t bytes, const Buffers& reads, const Buffers& writes,
                        int root, int64_t element_bytes) {
  if (group.size < 2) return;
  list_.add(name, Stream::collective, Message{kind, group, bytes, element_bytes == 0 ? e() : element_bytes, root}, reads, writes);
}

Buffer Script::gather(const char* name, const Group& group, int64_t whole_bytes, Buffer own) {
  if (group.size < 2) return own;
  const auto whole = list_.buffer(whole_bytes);
  collective(name, Kind::all_gather, group, whole_bytes, {own}, {whole});
  return whole;
}

Buffer Script::scatter_sum(const char* name, const Group& group, int64_t whole_bytes, Buffer whole) {
  if (group.size < 2) return whole;
  const auto own = list_.buffer(whole_bytes / group.size);
  collective(name, Kind::reduce_scatter, group, whole_bytes, {whole}, {own});
  return own;
}

void Script::send(const char* name, int to, int64_t bytes, Buffer from, bool is_launched) {
  list_.add(name, Stream::sending, Message{Kind::send, {.first = rank_}, bytes, 1, to, is_launched}, {from}, {});
}

Buffer Script::receive(const char* name, int from, int64_t bytes, bool is_launched) {
  const auto made = list_.buffer(bytes);
  list_.add(name, Stream::receiving, Message{Kind::receive, {.first = rank_}, bytes, 1, from, is_launched}, {}, {made});
  return made;
}

Buffer Script::rotate(const char* name, const Group& group, int64_t bytes, Buffer leaving) {
  const int index = (rank_ - group.first) / group.stride;
  send(name, group.rank((index + 1) % group.size), bytes, leaving);
  return receive(name, group.rank((index + group.size - 1) % group.size), bytes);
}

}  // namespace ingot::schedule
