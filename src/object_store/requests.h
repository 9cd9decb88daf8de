// Signed requests to one bucket, tried again until they succeed, cannot succeed, or run out of attempts or time. What `Client`
// is built on; any thread may call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "object_store/answers.h"
#include "object_store/client.h"
#include "object_store/http.h"
#include "object_store/signature.h"

namespace ingot::object_store {

struct Request {
  const char* verb;          // for messages: "put"
  std::string method;        // of HTTP
  std::string key;           // "" for the bucket itself
  std::string prefix{};      // of a listing, for messages
  Pairs query{}, headers{};  // headers' names in lower case; all are signed
  std::span<const std::byte> body{};
  std::span<std::byte> destination{};
  std::function<bool(const HttpAnswer& headers_only)> wanted{};  // see HttpRequest
  int64_t body_limit_bytes = int64_t{1} << 20;
  bool digest = false;                      // with the checksum of the options
  bool md5 = false;                         // with Content-MD5, which some requests need
  bool patient = false;                     // the server may think for as long as the deadline allows
  bool may_be_absent = false;               // 404 is an answer
  Failure unmet = Failure::already_exists;  // what 412 means
  double deadline_s = 0;                    // shorter than that of the options
  /// Throws BrokenAnswer for an answer that cannot be right; it is then tried again.
  std::function<void(const HttpAnswer&)> check{};
  std::stop_token stop{};
};

struct Outcome {
  HttpAnswer answer;
  std::string sha256;              // base64, of a request with `digest`; "" for other checksums
  bool maybe_done_before = false;  // an earlier attempt, whose answer was lost, may have been carried out
};

/// An error answer whose meaning depends on what was asked, after a lost attempt: the caller finds out what is there.
class UncertainError : public ObjectStoreError {
 public:
  using ObjectStoreError::ObjectStoreError;
};

class Requests {
 public:
  explicit Requests(ClientOptions options);

  /// Throws ObjectStoreError.
  Outcome perform(const Request& request);

  const ClientOptions& options() const { return options_; }
  Counters counters() const;
  std::string name_of(std::string_view key) const;  // "s3://bucket/key"

 private:
  enum class Next { done, again, renew, stop };
  struct Verdict {
    Next next = Next::done;
    Failure failure = Failure::refused;
    std::string what{};  // "HTTP 503 SlowDown: Please reduce your request rate"
  };
  HttpAnswer attempt(const Request& request, const std::string& payload_sha256, std::chrono::steady_clock::time_point deadline,
                     const Credentials& credentials);
  Verdict judge(const Request& request, const HttpAnswer& answer) const;
  bool renew(const Credentials& old);
  bool is_due(const Credentials& present);
  bool wait_for_renewal(const Credentials& expired, std::chrono::steady_clock::time_point until, const std::stop_token& stop);
  Credentials credentials();
  Credentials present_credentials() const;

  ClientOptions options_;
  Endpoint endpoint_;
  Http http_;
  mutable std::mutex mutex_;  // guards options_.account.credentials and what follows
  std::condition_variable changed_;
  bool renewing_ = false;                               // by one thread, without the mutex
  std::chrono::steady_clock::time_point next_renewal_;  // not before, by their expiry alone
  std::atomic<int64_t> requests_ = 0, retries_ = 0, sent_bytes_ = 0, received_bytes_ = 0;
};

}  // namespace ingot::object_store
