#include "http/server.h"

#include <malloc.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace ingot::http {
namespace {

// Reads from what has come, and writes within the limits.
class Connection : public httplib::Stream {
 public:
  Connection(const Arrived& request, const Limits& limits, const std::atomic<bool>& is_ending)
      : socket_(request.socket.descriptor()), bytes_(request.bytes), limits_(limits), is_ending_(is_ending) {}

  bool is_readable() const override { return read_bytes_ < bytes_.size(); }
  bool is_writable() const override { return !has_left() && can_be_written(Clock::now() + limits_.stall); }

  ssize_t read(char* into, size_t bytes) override {
    bytes = bytes_.copy(into, bytes, read_bytes_);
    read_bytes_ += bytes;
    return static_cast<ssize_t>(bytes);
  }

  ssize_t write(const char* from, size_t bytes) override {
    const auto now = Clock::now();
    if (deadline_ == Clock::time_point()) deadline_ = now + limits_.answer;
    if (is_ending_ || now >= deadline_) return -1;
    auto sent = ::send(socket_, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      constexpr int64_t kBytesPerSecond = 16 << 10;
      const auto most = limits_.stall + std::chrono::seconds(sent_bytes_ / kBytesPerSecond);
      if (!can_be_written(std::min(deadline_, now + most - stalled_))) return -1;
      stalled_ += Clock::now() - now;
      sent = ::send(socket_, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    sent_bytes_ += std::max<ssize_t>(sent, 0);
    return sent;
  }

  bool has_left() const {
    pollfd descriptor{socket_, POLLRDHUP, 0};  // even behind bytes that nobody reads
    return is_ending_ || ::poll(&descriptor, 1, 0) > 0;
  }

  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip = "127.0.0.1", port = 0; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip = "127.0.0.1", port = 0; }
  socket_t socket() const override { return 0; }  // httplib refuses those that select() does not take; nothing here calls it

 private:
  bool can_be_written(Clock::time_point deadline) const {
    constexpr auto kSlice = std::chrono::milliseconds(100);  // between two looks at is_ending_
    for (auto now = Clock::now(); now < deadline && !is_ending_; now = Clock::now()) {
      pollfd descriptor{socket_, POLLOUT, 0};
      const auto wait = std::chrono::ceil<std::chrono::milliseconds>(std::min<Clock::duration>(kSlice, deadline - now));
      const int ready = ::poll(&descriptor, 1, static_cast<int>(wait.count()));
      if (ready > 0) return true;
      if (ready < 0 && errno != EINTR) return false;
    }
    return false;
  }

  const int socket_;
  const std::string& bytes_;
  size_t read_bytes_ = 0;
  const Limits& limits_;
  Clock::time_point deadline_{};  // of the whole answer
  Clock::duration stalled_{};
  int64_t sent_bytes_ = 0;
  const std::atomic<bool>& is_ending_;
};

// httplib's own would have a thread wait for each connection's request.
class AtOnce : public httplib::TaskQueue {
 public:
  void enqueue(std::function<void()> task) override { task(); }
  void shutdown() override {}
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
  set_tcp_nodelay(true);                         // pieces of a stream are small
  new_task_queue = [] { return new AtOnce(); };  // httplib takes ownership
}

int Server::start(const std::string& host, int port) {
  const int found = port == 0 ? bind_to_any_port(host.c_str()) : bind_to_port(host.c_str(), port) ? port : -1;
  // httplib's own queue has room for five, and who finds it full tries again after a second.
  if (found <= 0) return found;
  ::listen(svr_sock_, static_cast<int>(std::max<size_t>(limits_.connections, 128)));
  workers_ = std::make_unique<httplib::ThreadPool>(limits_.connections);
  poller_ = std::make_unique<Poller>(limits_, [this](Arrived& request) {
    if (++answered_now_ > 2 * limits_.connections + 128) return --answered_now_, false;
    workers_->enqueue([this, taken = std::make_shared<Arrived>(std::move(request))] { answer(std::move(*taken)); });
    return true;
  });
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
  poller_->end();
  workers_->shutdown();
}

bool Server::client_has_left() { return current && current->has_left(); }

void Server::keep_until_sent(std::shared_ptr<void> kept) { kept_until_sent = std::move(kept); }

bool Server::process_and_close_socket(socket_t socket) {
  poller_->read_request(Socket(socket));
  return true;
}

void Server::answer(Arrived request) {
  Connection connection(request, limits_, is_ending_);
  current = &connection;
  bool is_closed = false;
  // Many ranges of one page would be many pages, a short body could be a long one packed, and forms would be taken apart. Who waits to be
  // asked for the body has been.
  const auto without_tricks = [](httplib::Request& asked) {
    asked.ranges.clear();
    for (const char* name : {"Content-Encoding", "Content-Type", "Expect"}) asked.headers.erase(name);
  };
  process_request(connection, /*close_connection=*/true, is_closed, without_tricks);
  current = nullptr;
  kept_until_sent.reset();
  poller_->close_later(std::move(request.socket));
  if (request.room) {
    // Each of malloc's arenas would keep what the longest of its threads' requests took.
    std::string().swap(request.bytes);
    ::malloc_trim(0);
    request.room.reset();
  }
  --answered_now_;
}

}  // namespace ingot::http
