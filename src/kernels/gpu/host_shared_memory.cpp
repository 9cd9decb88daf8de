#include "kernels/gpu/host_shared_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#endif

namespace ingot::kernels::gpu::host {

SharedMemory::~SharedMemory() {
  for (auto& [key, area] : areas_) ASAN_UNPOISON_MEMORY_REGION(area.vectors.data(), area.vectors.size() * sizeof(Vector));
}

void* SharedMemory::area(int key, int64_t bytes, int threads, int wave) {
  wave_ = wave;
  matrices_.resize(static_cast<size_t>(threads));
  const auto [place, is_new] = areas_.try_emplace(key);
  auto& area = place->second;
  if (is_new) {
    constexpr char kNotANumber = -1;
    area.number = static_cast<int>(areas_.size());
    area.bytes = bytes;
    area.vectors.assign(static_cast<size_t>((bytes + 15) / 16), {});
    area.log.assign(static_cast<size_t>(bytes), {});
    std::memset(area.vectors.data(), kNotANumber, area.vectors.size() * sizeof(Vector));
    const auto begin = reinterpret_cast<uintptr_t>(area.vectors.data()), end = begin + static_cast<uintptr_t>(bytes);
    ASAN_POISON_MEMORY_REGION(reinterpret_cast<char*>(begin) + bytes, area.vectors.size() * sizeof(Vector) - static_cast<size_t>(bytes));
    begin_ = begin_ == 0 ? begin : std::min(begin_, begin);
    end_ = std::max(end_, end);
  }
  return area.vectors.data();
}

void SharedMemory::note(int thread, const void* address, int64_t bytes, bool is_write) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (at >= end_ || at < begin_ || !race_.empty()) return;
  for (auto& [key, area] : areas_) {
    const auto begin = reinterpret_cast<uintptr_t>(area.vectors.data());
    if (at < begin || at >= begin + static_cast<uintptr_t>(area.bytes)) continue;
    const auto first = static_cast<int64_t>(at - begin), last = std::min(first + bytes, area.bytes);
    for (int64_t i = first; i < last && race_.empty(); ++i)
      note(area, area.log[static_cast<size_t>(i)], i, static_cast<int16_t>(thread), is_write);
    return;
  }
}

void SharedMemory::note(const Area& area, Byte& byte, int64_t place, int16_t thread, bool is_write) {
  if (byte.barriers != barriers_) byte = {.barriers = barriers_};
  const bool other_wrote = byte.writer != kNobody && byte.writer != thread;
  const int16_t other = other_wrote ? byte.writer : is_write ? reader_before(byte, thread) : kNobody;
  if (other != kNobody) {
    race_ = fmt::format("thread {} {} byte {} of shared memory {} that thread {} {}, with no barrier between them{}", thread,
                        is_write ? "writes" : "reads", place, area.number, other, other_wrote ? "wrote" : "read",
                        barriers_ > 0 ? fmt::format(" (both behind that of line {})", last_line_) : "");
    return;
  }
  if (is_write) byte.writer = thread;
  else note_read(byte, thread);
}

void SharedMemory::note_read(Byte& byte, int16_t thread) const {
  if (byte.reader == kNobody) byte.reader = thread;
  if (!are_together(byte.reader, thread)) {
    byte.foreign_reader = thread;
    return;
  }
  const int32_t now = matrices_[static_cast<size_t>(thread)];
  if (byte.recent_reader == kNobody || byte.recent != now) {
    byte.recent = now, byte.recent_reader = thread, byte.other_recent = kNobody;
  } else if (byte.recent_reader != thread) byte.other_recent = thread;
}

// One whose read nothing orders before what `writer` writes.
int16_t SharedMemory::reader_before(const Byte& byte, int16_t writer) const {
  if (byte.reader == kNobody) return kNobody;
  if (!are_together(byte.reader, writer)) return byte.reader;
  if (byte.foreign_reader != kNobody) return byte.foreign_reader;
  if (byte.recent != matrices_[static_cast<size_t>(writer)]) return kNobody;
  return byte.recent_reader != writer ? byte.recent_reader : byte.other_recent;
}

void SharedMemory::pass_barrier(int line) {
  ++barriers_;
  last_line_ = line;
}

void SharedMemory::pass_matrices(int thread) {
  if (!matrices_.empty()) ++matrices_[static_cast<size_t>(thread)];
}

}  // namespace ingot::kernels::gpu::host
