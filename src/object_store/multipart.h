// Uploads one object in parts that go out in parallel. Any thread may add parts, in any order; complete or abort is called once,
// after all add_part calls have returned. Memory is bounded by `in_flight` parts. The Client must outlive it.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "object_store/client.h"

namespace ingot::object_store {

inline constexpr int kMostParts = 10000;
inline constexpr int64_t kSmallestPartBytes = int64_t{5} << 20;  // of all but the last part
inline constexpr int64_t kLargestPartBytes = int64_t{5} << 30;

/// The smallest multiple of `preferred_bytes` with which an object of this size has no more than 10000 parts.
int64_t part_bytes_for(int64_t object_bytes, int64_t preferred_bytes = int64_t{16} << 20);

class MultipartUpload {
 public:
  /// Begins the upload at the store. `in_flight`: parts that wait or are under way, each on a thread of its own.
  MultipartUpload(const Client& client, const std::string& key, int in_flight = 4);
  /// Aborts what was not completed; a failure of that is only logged.
  ~MultipartUpload();
  MultipartUpload(const MultipartUpload&) = delete;
  MultipartUpload& operator=(const MultipartUpload&) = delete;

  /// Part `number` (1..10000, each once) of the object; they are joined in this order. Waits while `in_flight` parts are not yet
  /// there, and throws the failure of any part.
  void add_part(int number, std::vector<std::byte> content);
  /// Waits for all parts and makes the object visible, in one act. Returns its ETag. Numbers may have gaps.
  std::string complete();
  /// Ends the parts under way and tells the store to forget them.
  void abort();

 private:
  struct Work {
    int number;
    std::vector<std::byte> content;
  };
  void run();
  void stop_workers();

  const Client& client_;
  const Upload upload_;
  const int in_flight_limit_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Work> waiting_;
  int in_flight_ = 0;  // waiting or under way
  std::vector<Part> parts_;
  std::vector<bool> numbers_used_ = std::vector<bool>(kMostParts + 1);
  std::exception_ptr failure_;
  bool ending_ = false, ended_at_store_ = false;
  std::stop_source stop_;
  std::vector<std::jthread> workers_;
};

}  // namespace ingot::object_store
