// httplib's server with limits on what a client may cost: a request is as long and takes as long as is said, and who does not read an
// answer is left. One answer a connection.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>

namespace ingot::http {

using Clock = std::chrono::steady_clock;

struct Limits {
  size_t request_bytes = 32 << 10;                    // headers and body
  Clock::duration request = std::chrono::seconds(5);  // from the connection to the end of the request
  Clock::duration stall = std::chrono::seconds(5);    // that the client takes nothing of the answer
  Clock::duration answer = std::chrono::hours(24);    // from its first byte on
  size_t connections = 8;                             // at once; more wait
};

class Server : public httplib::Server {
 public:
  explicit Server(const Limits& limits);
  /// Ends. Handlers may use what lives longer than the server.
  ~Server() override { end(); }

  /// Answers from here on, in threads of its own, at the port, 0 for any, and returns it; not above 0 where it is taken or not allowed.
  int start(const std::string& host, int port);
  /// False once it has ended, or its socket has failed.
  bool is_up() const { return thread_.joinable() && !has_ended_; }
  /// Answers under way end where they are. Does nothing where it has not started.
  void end();

  /// In a handler: the client of the request that this thread answers has closed the connection, or the server ends.
  static bool client_has_left();
  /// In a handler: lives until the answer has been sent, or cannot be.
  static void keep_until_sent(std::shared_ptr<void> kept);

 private:
  bool process_and_close_socket(socket_t socket) override;

  const Limits limits_;
  std::atomic<bool> is_ending_ = false, has_ended_ = false;
  std::thread thread_;
};

}  // namespace ingot::http
