#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "object_store/client.h"

namespace ingot::object_store {

void Client::read(const std::string& key, int64_t offset, std::span<std::byte> destination, const std::string& etag, int threads) const {
  const int64_t size_bytes = static_cast<int64_t>(destination.size()), range_bytes = std::max<int64_t>(1, options().range_bytes);
  const int64_t ranges = (size_bytes + range_bytes - 1) / range_bytes;
  const int64_t workers = std::min<int64_t>(ranges, threads > 0 ? threads : options().connections);
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;  // the first one, guarded by mutex; the others only follow from it
  std::stop_source stop;
  const auto work = [&] {
    try {
      for (int64_t range; (range = next++) < ranges && !stop.stop_requested();) {
        const int64_t begin = range * range_bytes;
        const auto part = destination.subspan(static_cast<size_t>(begin), static_cast<size_t>(std::min(range_bytes, size_bytes - begin)));
        get_range(key, offset + begin, part, etag, stop.get_token());
      }
    } catch (...) {
      const std::lock_guard guard(mutex);
      if (!failure) failure = std::current_exception();
      stop.request_stop();
    }
  };
  {
    std::vector<std::jthread> others;
    for (int64_t i = 1; i < workers; ++i) others.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace ingot::object_store
