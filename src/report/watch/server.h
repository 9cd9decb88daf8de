// Serves a LivePage over HTTP on 127.0.0.1 alone: "/" is the page, "/main" what changes of it. A connection is one request, has a
// deadline as a whole, and is closed after the answer.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

namespace ingot::report {

class WatchServer {
 public:
  /// Answers at once, from threads of its own. `port` 0: one that is free. `timeout_s`: for a request to come, and for its answer to be
  /// taken. Throws UsageError when the port cannot be had.
  WatchServer(std::vector<std::filesystem::path> folders, int port, double timeout_s);
  /// Cuts off whoever is connected.
  ~WatchServer();
  WatchServer(const WatchServer&) = delete;
  WatchServer& operator=(const WatchServer&) = delete;

  int port() const;
  /// Until its socket fails.
  bool is_running() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ingot::report
