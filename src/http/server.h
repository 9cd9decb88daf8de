// httplib's server with limits on what a client may cost: a request is as long and takes as long as is said, and who does not read an
// answer is left. One answer a connection. A thread works on a request from when it has come whole until its answer has been sent.
#pragma once

#include <httplib.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "http/limits.h"
#include "http/poller.h"

namespace ingot::http {

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
  void answer(Arrived request);

  const Limits limits_;
  std::atomic<bool> is_ending_ = false, has_ended_ = false;
  std::atomic<size_t> answered_now_ = 0;  // and what waits for that
  std::unique_ptr<httplib::ThreadPool> workers_;
  std::unique_ptr<Poller> poller_;
  std::thread thread_;
};

}  // namespace ingot::http
