// Hooks for tests of what happens when a system call dies, fails or does half of what it should.
#pragma once

#include <atomic>
#include <cerrno>
#include <csignal>

#include "checkpoint/storage/storage.h"

namespace ingot::checkpoint {

// Acts at the `at`-th call (from 0) and counts them all.
class ActAt : public CallHook {
 public:
  explicit ActAt(int at) : at_(at) {}
  int before(Call call, const fs::path& path, size_t& size_bytes) override { return count_++ == at_ ? act(call, path, size_bytes) : 0; }
  int count() const { return count_; }
  /// From now on it only counts.
  void stop() { at_ = -1; }

 protected:
  virtual int act(Call call, const fs::path& path, size_t& size_bytes) = 0;

 private:
  std::atomic<int> at_, count_ = 0;
};

class Kill : public ActAt {
 public:
  using ActAt::ActAt;
  int act(Call, const fs::path&, size_t&) override { return ::raise(SIGKILL); }
};

class Fail : public ActAt {
 public:
  Fail(int at, int error) : ActAt(at), error_(error) {}
  Call failed = Call::open;
  fs::path failed_path;

 protected:
  int act(Call call, const fs::path& path, size_t&) override {
    failed = call;
    failed_path = path;
    return error_;
  }

 private:
  int error_;
};

class Shorten : public ActAt {
 public:
  using ActAt::ActAt;
  int act(Call, const fs::path&, size_t& size_bytes) override {
    size_bytes = size_bytes > 1 ? size_bytes / 2 : size_bytes;
    return 0;
  }
};

// File systems without RENAME_EXCHANGE (NFS, for one); otherwise like the hook it wraps.
class NoExchange : public CallHook {
 public:
  explicit NoExchange(CallHook& inner) : inner_(inner) {}
  int before(Call call, const fs::path& path, size_t& size_bytes) override {
    const int refused = inner_.before(call, path, size_bytes);
    return refused == 0 && call == Call::exchange ? EINVAL : refused;
  }

 private:
  CallHook& inner_;
};

}  // namespace ingot::checkpoint
