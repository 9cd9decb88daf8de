// One thread that waits on many sockets: until a request has come whole, and after its answer until the client closes. A client that is
// slow or never ends costs a socket and the bytes that it has sent, but no thread.
//
// Any thread may call it. What has come whole is handed over in the poller's own thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "http/incoming.h"
#include "http/limits.h"
#include "http/socket.h"

namespace ingot::http {

/// A request that has come whole, or will not come any further.
struct Arrived {
  Socket socket;
  std::string bytes;
  std::shared_ptr<void> room;  // its share of the memory for large requests, given back at the end
};

class Poller {
 public:
  /// False: it cannot be taken at the moment.
  using Take = std::function<bool(Arrived&)>;

  Poller(const Limits& limits, Take take);
  ~Poller();

  /// A client has connected.
  void read_request(Socket socket);
  /// Its answer has been sent. Were the socket closed while the client still sends, the kernel would send a reset, at which the client may
  /// throw the answer away (RFC 9112, section 9.6): what comes is read and dropped, for some seconds.
  void close_later(Socket socket);
  /// Closes all; what comes afterwards is closed at once.
  void end();

 private:
  struct Room;
  struct Client {
    Socket socket;
    Incoming request;
    Clock::time_point deadline;
    bool is_answered;
    size_t dropped_bytes = 0;
    std::shared_ptr<Room> room{};
  };
  using Clients = std::unordered_map<int, Client>;

  void add(Socket socket, Clock::duration time, bool is_answered);
  void run();
  void read(Clients::iterator client);
  void drop(Clients::iterator client);
  void hand_over(Clients::iterator client);
  /// With a status line and no more.
  void refuse(Clients::iterator client, const char* status);
  void close_oldest(bool is_answered);
  size_t& count_of(const Client& client) { return client.is_answered ? answered_ : incoming_; }
  void close_late();

  const Limits limits_;
  const Take take_;
  const int epoll_;
  const std::shared_ptr<std::atomic<size_t>> large_bytes_ = std::make_shared<std::atomic<size_t>>(0);
  std::mutex mutex_;
  Clients clients_;
  size_t incoming_ = 0, answered_ = 0;
  std::atomic<bool> has_ended_ = false;
  std::thread thread_;
};

}  // namespace ingot::http
