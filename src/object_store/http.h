// One HTTP request and its whole answer, over a pool of libcurl connections that are kept open and used again. Any thread may
// call; at most `connections` requests are under way, others wait. Nothing here throws for what a server or network does: the
// answer says how far it came. Redirects are not followed: the signature is for one host.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "object_store/encoding.h"

namespace ingot::object_store {

struct HttpAnswer {
  int status = 0;                                           // 0 when no status line came
  std::map<std::string, std::string, std::less<>> headers;  // names in lower case
  std::string body;                                         // what did not go to the request's destination
  int64_t received_bytes = 0;                               // of the destination
  std::string failure;                                      // what the network did wrong; "" when the answer is complete
  bool maybe_carried_out = true;                            // false when the request surely never reached the server
  bool timed_out = false;                                   // at the request's deadline, not by a stall
  bool cancelled = false;
  bool hopeless = false;  // the server's certificate is not trusted: no other attempt can do better

  const std::string& header(std::string_view name) const;  // "" without it
};

struct HttpRequest {
  std::string method, url;
  Pairs headers;
  std::span<const std::byte> body;  // must live until the call returns
  /// Where the body of an answer goes for which `wanted` is true; more than fits ends the request as a failure.
  std::span<std::byte> destination;
  std::function<bool(const HttpAnswer& headers_only)> wanted;
  int64_t body_limit_bytes = int64_t{1} << 20;
  std::chrono::steady_clock::time_point deadline;
  double stall_s = 0;  // ends the request when less than 1 KiB/s moved for so long
  std::stop_token stop;
  bool direct = false;  // past any proxy: services of the machine itself
};

struct HttpOptions {
  int connections = 16;
  double connect_s = 10;
  std::string ca_bundle;  // "" for the system's certificates
};

class Http {
 public:
  explicit Http(HttpOptions options);
  ~Http();  // after the last call has returned
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;

  HttpAnswer perform(const HttpRequest& request);

  /// TCP connections opened so far; the same number of requests or more went over them.
  int64_t connections_opened() const { return connections_opened_; }

 private:
  class Handle;
  Handle* take(const HttpRequest& request);
  void give_back(Handle* handle);

  HttpOptions options_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<std::unique_ptr<Handle>> handles_;  // guarded by mutex_, like the list of those not in use
  std::vector<Handle*> free_;
  std::atomic<int64_t> connections_opened_ = 0;
};

}  // namespace ingot::object_store
