// Keeps a second writer out of a prefix of a bucket: one object that names its holder and is written by conditional requests alone
// (If-None-Match and If-Match), so that of two writers one has it. The holder renews it; who finds it unchanged for a whole lease takes it
// over, by its own clock and no other, and at once when it can see that the holder, of the same machine, is dead.
//
// Any thread may call; one more renews. The Client must outlive it.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "object_store/client.h"

namespace ingot::object_store {

class WriterLock {
  struct Taken {};  // only take() makes one

 public:
  /// Takes the object `key`. Waits up to `patience` for a holder that lives, and up to its lease to see whether it does. Throws
  /// base::ConfigError that says who holds it, and ObjectStoreError. Null, with a warning, where the store knows no conditional writes.
  static std::shared_ptr<WriterLock> take(const Client& client, const std::string& key, const std::string& holder, double lease_s,
                                          std::chrono::duration<double> patience);
  WriterLock(Taken, const Client& client, std::string key, const std::string& holder, double lease_s);
  /// Removes the object, if it is certainly its own still.
  ~WriterLock();
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

  /// Renews it now. Afterwards nobody else has it for two thirds of a lease at least. Throws base::CheckpointError when another has taken
  /// it, and ObjectStoreError.
  void confirm();
  double lease_s() const { return lease_s_; }
  /// Whether another has taken it, as far as is known.
  bool is_lost();

 private:
  using Clock = std::chrono::steady_clock;
  /// False where the condition does not hold: another has it.
  bool write(const PutOptions& condition);
  bool is_conditional();
  void renew(double deadline_s);
  void run();
  std::string content();

  const Client& client_;
  const std::string key_, holder_, owner_;
  const double lease_s_;
  std::mutex mutex_;  // guards what follows
  std::string etag_;
  int64_t writes_ = 0;  // so that each has another ETag
  Clock::time_point valid_until_{};
  bool lost_ = false, closing_ = false;
  std::condition_variable changed_;
  std::thread renewer_;
};

}  // namespace ingot::object_store
