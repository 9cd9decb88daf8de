#include "resilience/reachability.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "base/system_call.h"

namespace ingot::resilience {
namespace {

using Clock = std::chrono::steady_clock;

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int descriptor() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

// For both versions of IP, where there are both.
int listen_anywhere() {
  const Socket both(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6, any6.sin6_addr = in6addr_any;
  const int no = 0;
  constexpr int kWaiting = 128;
  if (both && setsockopt(both.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) == 0 &&
      bind(both.descriptor(), reinterpret_cast<sockaddr*>(&any6), sizeof any6) == 0 && listen(both.descriptor(), kWaiting) == 0)
    return dup(both.descriptor());
  const Socket four(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in any4{};
  any4.sin_family = AF_INET;
  if (four && bind(four.descriptor(), reinterpret_cast<sockaddr*>(&any4), sizeof any4) == 0 && listen(four.descriptor(), kWaiting) == 0)
    return dup(four.descriptor());
  return -1;
}

int port_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (descriptor < 0 || getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

}  // namespace

bool answers(const std::string& address, int port, double seconds) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, freeaddrinfo);
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  for (const auto* each = found; each; each = each->ai_next) {
    const Socket tried(socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, each->ai_protocol));
    if (!tried) continue;
    if (connect(tried.descriptor(), each->ai_addr, each->ai_addrlen) == 0) return true;
    if (errno != EINPROGRESS) continue;
    pollfd wait{tried.descriptor(), POLLOUT, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (base::uninterrupted([&] { return poll(&wait, 1, static_cast<int>(std::max<int64_t>(0, left))); }) <= 0) continue;
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(tried.descriptor(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0) return true;
  }
  return false;
}

struct Reachability::State {
  explicit State(Options with) : options(with), listening(listen_anywhere()) {
    answering = std::thread([this] { answer(); });
    asking = std::thread([this] { ask(); });
  }
  ~State() {
    {
      const std::lock_guard lock(mutex);
      is_ending = true;
    }
    changed.notify_all();
    answering.join();
    asking.join();
  }

  // Whoever asks wants no more than to be let in.
  void answer() {
    constexpr int kLookWhetherItEnds_ms = 100;
    while (listening && !is_asked_to_end()) {
      pollfd asked{listening.descriptor(), POLLIN, 0};
      if (poll(&asked, 1, kLookWhetherItEnds_ms) <= 0) continue;
      for (int asker = 0; (asker = accept4(listening.descriptor(), nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) close(asker);
    }
  }

  bool is_asked_to_end() const {
    const std::lock_guard lock(mutex);
    return is_ending;
  }

  void ask() {
    std::unique_lock lock(mutex);
    while (!is_ending) {
      const auto now = peers;
      for (const auto& peer : now) {
        lock.unlock();
        const bool is_there = answers(peer.address, peer.port, options.answer_s);
        lock.lock();
        if (is_ending) return;
        if (is_there) answered[peer.id] = {Clock::now(), 0};
        else if (const auto known = answered.find(peer.id); known != answered.end()) ++known->second.failures;
      }
      changed.wait_for(lock, std::chrono::duration<double>(options.every_s), [this] { return is_ending; });
    }
  }

  const Options options;
  const Socket listening;
  mutable std::mutex mutex;
  std::condition_variable changed;
  bool is_ending = false;
  std::vector<Peer> peers;
  struct Answer {
    Clock::time_point at;
    int failures = 0;  // since
  };
  std::map<int64_t, Answer> answered;
  std::thread answering, asking;
};

Reachability::Reachability(Options options) : state_(std::make_unique<State>(options)) {}
Reachability::~Reachability() = default;

int Reachability::port() const { return port_of(state_->listening.descriptor()); }

void Reachability::watch(std::vector<Peer> peers) {
  const std::lock_guard lock(state_->mutex);
  state_->peers = std::move(peers);
  state_->answered.clear();
}

std::vector<int64_t> Reachability::silent_for(double seconds) const {
  const auto before = Clock::now() - std::chrono::duration<double>(seconds);
  const std::lock_guard lock(state_->mutex);
  std::vector<int64_t> silent;
  for (const auto& [id, last] : state_->answered)
    if (last.at < before && last.failures >= kTries) silent.push_back(id);
  return silent;
}

}  // namespace ingot::resilience
