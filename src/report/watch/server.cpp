#include "report/watch/server.h"

#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include "base/error.h"
#include "report/watch/live_page.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr size_t kLongestRequestBytes = 32 << 10;  // browsers send the cookies of every program on 127.0.0.1
constexpr size_t kThreads = 8;                     // browsers open connections in advance and leave them idle

// A connection. The library's own has a time-out for each byte and takes headers without end.
class Connection : public httplib::Stream {
 public:
  Connection(socket_t socket, Clock::duration timeout, const std::atomic<bool>& is_ending)
      : socket_(socket), timeout_(timeout), deadline_(Clock::now() + timeout), is_ending_(is_ending) {}

  bool is_readable() const override { return comes(POLLIN); }
  bool is_writable() const override { return comes(POLLOUT); }

  ssize_t read(char* into, size_t bytes) override {
    bytes = std::min(bytes, kLongestRequestBytes - read_bytes_);
    if (bytes == 0 || !comes(POLLIN)) return -1;
    const ssize_t got = ::recv(socket_, into, bytes, 0);
    if (got > 0) read_bytes_ += static_cast<size_t>(got);
    return got;
  }

  ssize_t write(const char* from, size_t bytes) override {
    if (!has_answered_) deadline_ = Clock::now() + timeout_;
    has_answered_ = true;
    return comes(POLLOUT) ? ::send(socket_, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) : -1;
  }

  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip = "127.0.0.1", port = 0; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip = "127.0.0.1", port = 0; }
  socket_t socket() const override { return socket_; }

 private:
  // Whether the socket is ready for `what` before the deadline.
  bool comes(short what) const {
    constexpr auto kSlice = std::chrono::milliseconds(100);  // between two looks at is_ending_
    for (auto now = Clock::now(); now < deadline_ && !is_ending_; now = Clock::now()) {
      pollfd descriptor{socket_, what, 0};
      const auto wait = std::min(kSlice, std::chrono::ceil<std::chrono::milliseconds>(deadline_ - now));
      const int ready = ::poll(&descriptor, 1, static_cast<int>(wait.count()));
      if (ready > 0) return true;
      if (ready < 0 && errno != EINTR) return false;
    }
    return false;
  }

  const socket_t socket_;
  const Clock::duration timeout_;
  Clock::time_point deadline_;
  const std::atomic<bool>& is_ending_;
  size_t read_bytes_ = 0;
  bool has_answered_ = false;
};

// Pages of other sites may send requests here, under a name of theirs that leads to 127.0.0.1, and must not read the answers.
bool names_this_machine(const std::string& host) {
  const auto name = host.substr(0, host.rfind(':'));
  return name == "127.0.0.1" || name == "localhost";
}

class Server : public httplib::Server {
 public:
  explicit Server(Clock::duration timeout) : timeout_(timeout) {}
  std::atomic<bool> is_ending = false;

 private:
  bool process_and_close_socket(socket_t socket) override {
    Connection connection(socket, timeout_, is_ending);
    bool is_closed = false;
    // Many ranges of one page would be many pages.
    const auto without_ranges = [](httplib::Request& request) { request.ranges.clear(); };
    const bool answered = process_request(connection, /*close_connection=*/true, is_closed, without_ranges);
    ::shutdown(socket, SHUT_WR);
    ::close(socket);
    return answered;
  }

  const Clock::duration timeout_;
};

}  // namespace

struct WatchServer::State {
  LivePage page;
  Server server;
  std::thread thread;
  std::atomic<bool> has_ended = false;
  int port = 0;

  State(std::vector<fs::path> folders, double timeout_s)
      : page(std::move(folders)), server(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s))) {}

  void answer(const httplib::Request& request, httplib::Response& response, std::string Page::*part) {
    const auto now = page.current();
    const auto tag = '"' + now->tag + '"';
    response.set_header("ETag", tag);
    if (request.get_header_value("If-None-Match") == tag) response.status = 304;
    else response.set_content((*now).*part, "text/html; charset=utf-8");
  }

  void configure() {
    // httplib's default is SO_REUSEPORT, under which two programs share a port without a word.
    server.set_socket_options([](int descriptor) {
      const int yes = 1;
      ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };  // httplib takes ownership
    server.set_payload_max_length(0);
    server.set_default_headers({{"Cache-Control", "no-store"},
                                {"Cross-Origin-Resource-Policy", "same-origin"},
                                {"X-Content-Type-Options", "nosniff"},
                                {"X-Frame-Options", "DENY"}});
    server.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
      if (names_this_machine(request.get_header_value("Host"))) return httplib::Server::HandlerResponse::Unhandled;
      response.status = 403;
      response.set_content("ingot report --watch answers at http://127.0.0.1 and http://localhost alone\n", "text/plain");
      return httplib::Server::HandlerResponse::Handled;
    });
    server.Get("/", [this](const httplib::Request& request, httplib::Response& response) { answer(request, response, &Page::whole); });
    server.Get("/main", [this](const httplib::Request& request, httplib::Response& response) { answer(request, response, &Page::main); });
  }
};

WatchServer::WatchServer(std::vector<fs::path> folders, int port, double timeout_s)
    : state_(std::make_unique<State>(std::move(folders), timeout_s)) {
  state_->configure();
  state_->port = port == 0 ? state_->server.bind_to_any_port("127.0.0.1") : state_->server.bind_to_port("127.0.0.1", port) ? port : -1;
  if (state_->port <= 0)
    throw base::UsageError("cannot listen at 127.0.0.1:{}: the port is taken or needs root; --port takes another one, and 0 for any", port);
  state_->thread = std::thread([state = state_.get()] {
    state->server.listen_after_bind();
    state->has_ended = true;
  });
}

WatchServer::~WatchServer() {
  // stop() is ignored by a server that has not reached its loop yet.
  while (!state_->server.is_running() && !state_->has_ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  state_->server.is_ending = true;
  state_->server.stop();
  state_->thread.join();
}

int WatchServer::port() const { return state_->port; }

bool WatchServer::is_running() const { return !state_->has_ended; }

}  // namespace ingot::report
