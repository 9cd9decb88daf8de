#include "http/server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace ingot::http {
namespace {

// The library's own has a time-out for each byte and takes headers without end.
class Connection : public httplib::Stream {
 public:
  Connection(socket_t socket, const Limits& limits, const std::atomic<bool>& is_ending)
      : socket_(socket), limits_(limits), read_deadline_(Clock::now() + limits.request), is_ending_(is_ending) {}

  bool is_readable() const override { return comes(POLLIN, read_deadline_); }
  bool is_writable() const override { return !has_left() && comes(POLLOUT, Clock::now() + limits_.stall); }

  ssize_t read(char* into, size_t bytes) override {
    bytes = std::min(bytes, limits_.request_bytes - read_bytes_);
    if (bytes == 0 || !comes(POLLIN, read_deadline_)) return -1;
    const ssize_t got = ::recv(socket_, into, bytes, 0);
    if (got > 0) read_bytes_ += static_cast<size_t>(got);
    return got;
  }

  ssize_t write(const char* from, size_t bytes) override {
    if (write_deadline_ == Clock::time_point()) write_deadline_ = Clock::now() + limits_.answer;
    if (!comes(POLLOUT, std::min(write_deadline_, Clock::now() + limits_.stall))) return -1;
    return ::send(socket_, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  bool has_left() const {
    if (is_ending_) return true;
    char byte = 0;
    const ssize_t got = ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }

  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip = "127.0.0.1", port = 0; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip = "127.0.0.1", port = 0; }
  socket_t socket() const override { return socket_; }

 private:
  // Whether the socket is ready for `what` before the deadline.
  bool comes(short what, Clock::time_point deadline) const {
    constexpr auto kSlice = std::chrono::milliseconds(100);  // between two looks at is_ending_
    for (auto now = Clock::now(); now < deadline && !is_ending_; now = Clock::now()) {
      pollfd descriptor{socket_, what, 0};
      const auto wait = std::min<Clock::duration>(kSlice, std::chrono::ceil<std::chrono::milliseconds>(deadline - now));
      const int ready = ::poll(&descriptor, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count()));
      if (ready > 0) return true;
      if (ready < 0 && errno != EINTR) return false;
    }
    return false;
  }

  const socket_t socket_;
  const Limits& limits_;
  const Clock::time_point read_deadline_;
  Clock::time_point write_deadline_{};  // since the first byte of the answer
  const std::atomic<bool>& is_ending_;
  size_t read_bytes_ = 0;
};

thread_local const Connection* current = nullptr;
thread_local std::shared_ptr<void> kept_until_sent;

}  // namespace

Server::Server(const Limits& limits) : limits_(limits) {
  // httplib's default is SO_REUSEPORT, under which two programs share a port without a word.
  set_socket_options([](int descriptor) {
    const int yes = 1;
    ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  set_tcp_nodelay(true);                                                                         // pieces of a stream are small
  new_task_queue = [threads = limits.connections] { return new httplib::ThreadPool(threads); };  // httplib takes ownership
}

int Server::start(const std::string& host, int port) {
  const int found = port == 0 ? bind_to_any_port(host.c_str()) : bind_to_port(host.c_str(), port) ? port : -1;
  // httplib's own queue has room for five, and who finds it full tries again after a second.
  if (found > 0) ::listen(svr_sock_, static_cast<int>(std::max<size_t>(limits_.connections, 128)));
  if (found > 0)
    thread_ = std::thread([this] {
      listen_after_bind();
      has_ended_ = true;
    });
  return found;
}

void Server::end() {
  if (!thread_.joinable()) return;
  // stop() is ignored by a server that has not reached its loop yet.
  while (!is_running() && !has_ended_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  is_ending_ = true;
  stop();
  thread_.join();
}

bool Server::client_has_left() { return current && current->has_left(); }

void Server::keep_until_sent(std::shared_ptr<void> kept) { kept_until_sent = std::move(kept); }

bool Server::process_and_close_socket(socket_t socket) {
  Connection connection(socket, limits_, is_ending_);
  current = &connection;
  bool is_closed = false;
  // Many ranges of one page would be many pages, and a short body could be a long one packed.
  const auto without_tricks = [](httplib::Request& request) {
    request.ranges.clear();
    request.headers.erase("Content-Encoding");
  };
  const bool answered = process_request(connection, /*close_connection=*/true, is_closed, without_tricks);
  current = nullptr;
  kept_until_sent.reset();
  ::shutdown(socket, SHUT_WR);
  ::close(socket);
  return answered;
}

}  // namespace ingot::http
