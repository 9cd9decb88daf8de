// System calls as PosixStorage makes them: each asks the hook first, is tried again after EINTR, and becomes a CheckpointError that
// names path, reason and what to do. Internal to this folder.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"
#include "checkpoint/storage/storage.h"

namespace ingot::checkpoint {

base::CheckpointError call_failure(Call call, const fs::path& path, int error);

// One system call: asks the hook first, tries again after EINTR. Returns the call's result, -1 with errno on failure.
template <class Function>
auto attempt(CallHook* hook, Call call, const fs::path& path, size_t size_bytes, Function&& function) {
  decltype(function(size_bytes)) result = -1;
  do {
    size_t allowed_bytes = size_bytes;
    const int refused = hook ? hook->before(call, path, allowed_bytes) : 0;
    if (refused != 0) {
      errno = refused;
      result = -1;
    } else {
      result = function(allowed_bytes);
    }
  } while (result < 0 && errno == EINTR);
  return result;
}

template <class Function>
auto must(CallHook* hook, Call call, const fs::path& path, Function&& function) {
  const auto result = attempt(hook, call, path, 0, [&](size_t) { return function(); });
  if (result < 0) throw call_failure(call, path, errno);
  return result;
}

class Descriptor {
 public:
  Descriptor(CallHook* hook, fs::path path, int flags) : hook_(hook), path_(std::move(path)) {
    number_ = must(hook_, Call::open, path_, [&] { return ::open(path_.c_str(), flags | O_CLOEXEC, 0644); });
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }
  const fs::path& path() const { return path_; }
  CallHook* hook() const { return hook_; }
  void sync() {
    must(hook_, Call::sync, path_, [&] { return ::fsync(number_); });
  }
  // Linux frees the descriptor even when close fails, EINTR included, so it is never tried again.
  void close();

 private:
  CallHook* hook_;
  fs::path path_;
  int number_ = -1;
};

}  // namespace ingot::checkpoint
