#include "http/poller.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>

namespace ingot::http {
namespace {

constexpr auto kLinger = std::chrono::seconds(5);
constexpr auto kSlice = std::chrono::milliseconds(100);  // between two looks at who is late
// Requests beyond kSmallBytes share room for kLargeRequests of the longest: many of them do not fill the memory, and small ones go by.
constexpr size_t kSmallBytes = 64 << 10, kLargeRequests = 8, kLingerRequests = 4;

}  // namespace

struct Poller::Room {
  explicit Room(std::shared_ptr<std::atomic<size_t>> of_all) : all(std::move(of_all)) {}
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() { *all -= bytes; }

  bool grow(size_t to, size_t most) {
    if (to <= bytes) return true;
    const size_t more = to - bytes;
    if (all->fetch_add(more) + more > most) {
      *all -= more;
      return false;
    }
    bytes = to;
    return true;
  }

  const std::shared_ptr<std::atomic<size_t>> all;
  size_t bytes = 0;
};

Poller::Poller(const Limits& limits, Take take) : limits_(limits), take_(std::move(take)), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_ < 0) throw std::system_error(errno, std::generic_category(), "epoll_create1");
  thread_ = std::thread([this] { run(); });
}

Poller::~Poller() {
  end();
  ::close(epoll_);
}

void Poller::end() {
  has_ended_ = true;
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  clients_.clear();
  incoming_ = answered_ = 0;
}

void Poller::read_request(Socket socket) { add(std::move(socket), limits_.request, /*is_answered=*/false); }

void Poller::close_later(Socket socket) {
  ::shutdown(socket.descriptor(), SHUT_WR);
  add(std::move(socket), kLinger, /*is_answered=*/true);
}

void Poller::add(Socket socket, Clock::duration time, bool is_answered) {
  const int descriptor = socket.descriptor();
  const std::lock_guard lock(mutex_);
  if (has_ended_) return;
  if ((is_answered ? answered_ : incoming_) >= limits_.incoming) close_oldest(is_answered);
  const auto [client, _] =
      clients_.try_emplace(descriptor, Client{std::move(socket), Incoming(limits_.request_bytes), Clock::now() + time, is_answered});
  ++count_of(client->second);
  epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) != 0) drop(client);
}

void Poller::run() {
  std::array<epoll_event, 64> events{};
  auto next_look = Clock::now() + kSlice;
  while (!has_ended_) {
    const int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()),
                                   static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(kSlice).count()));
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < count; ++i)
      if (const auto client = clients_.find(events[static_cast<size_t>(i)].data.fd); client != clients_.end()) read(client);
    if (const auto now = Clock::now(); now >= next_look) {
      close_late();
      next_look = now + kSlice;
    }
  }
}

void Poller::read(Clients::iterator found) {
  auto& client = found->second;
  std::array<char, 64 << 10> buffer;
  const ssize_t got = ::recv(client.socket.descriptor(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (got < 0) return drop(found);
  if (client.is_answered) {
    client.dropped_bytes += static_cast<size_t>(got);
    if (got == 0 || client.dropped_bytes > kLingerRequests * limits_.request_bytes) drop(found);
    return;
  }
  if (got == 0) return client.request.bytes().empty() ? drop(found) : hand_over(found);
  if (const size_t bytes = client.request.bytes().size() + static_cast<size_t>(got); bytes > kSmallBytes) {
    if (!client.room) client.room = std::make_shared<Room>(large_bytes_);
    if (!client.room->grow(bytes, kLargeRequests * limits_.request_bytes)) return refuse(found, "503 Service Unavailable");
  }
  switch (client.request.add({buffer.data(), static_cast<size_t>(got)})) {
    case Incoming::State::whole: return hand_over(found);
    case Incoming::State::head_too_long: return refuse(found, "431 Request Header Fields Too Large");
    case Incoming::State::too_long: return refuse(found, "413 Payload Too Large");
    case Incoming::State::coming: break;
  }
  constexpr std::string_view kGoOn = "HTTP/1.1 100 Continue\r\n\r\n";
  if (client.request.wants_to_be_asked()) ::send(client.socket.descriptor(), kGoOn.data(), kGoOn.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void Poller::drop(Clients::iterator client) {
  --count_of(client->second);
  clients_.erase(client);
}

void Poller::hand_over(Clients::iterator found) {
  auto& client = found->second;
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, client.socket.descriptor(), nullptr);
  Arrived arrived{std::move(client.socket), client.request.take(), std::move(client.room)};
  if (take_(arrived)) return drop(found);
  const int descriptor = arrived.socket.descriptor();
  client.socket = std::move(arrived.socket);
  epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) != 0) return drop(found);
  refuse(found, "503 Service Unavailable");
}

void Poller::refuse(Clients::iterator found, const char* status) {
  auto& client = found->second;
  const int descriptor = client.socket.descriptor();
  const auto answer = std::string("HTTP/1.1 ") + status + "\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
  ::send(descriptor, answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  ::shutdown(descriptor, SHUT_WR);
  --incoming_, ++answered_;
  client.is_answered = true;
  client.deadline = Clock::now() + kLinger;
  client.request.take();
  client.room.reset();
}

void Poller::close_oldest(bool is_answered) {
  auto oldest = clients_.end();
  for (auto client = clients_.begin(); client != clients_.end(); ++client)
    if (client->second.is_answered == is_answered && (oldest == clients_.end() || client->second.deadline < oldest->second.deadline))
      oldest = client;
  if (oldest != clients_.end()) drop(oldest);
}

void Poller::close_late() {
  const auto now = Clock::now();
  for (auto client = clients_.begin(); client != clients_.end();) {
    const auto next = std::next(client);
    const bool is_late = now >= client->second.deadline;
    if (is_late && (client->second.is_answered || client->second.request.bytes().empty())) drop(client);
    else if (is_late) refuse(client, "408 Request Timeout");
    client = next;
  }
}

}  // namespace ingot::http
