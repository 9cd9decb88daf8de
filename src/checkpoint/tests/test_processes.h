// Ranks as processes of their own, for tests in which one of them dies.
#pragma once

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "checkpoint/ranks/team.h"
#include "checkpoint/tests/test_support.h"

namespace ingot::checkpoint {

// Texts pass through a socket between rank 0 and each other rank. What a rank sent before it died still arrives; whoever waits for more
// of it gets a CommError, at once when it is dead and after some seconds when it is merely silent.
class ProcessTeam : public Team {
 public:
  /// sockets[r] leads to rank r where there is one.
  ProcessTeam(int rank, std::vector<int> sockets) : rank_(rank), sockets_(std::move(sockets)) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(sockets_.size()); }
  std::vector<std::string> gather(const std::string& own) const override {
    if (rank_ > 0) return send(0, own), std::vector<std::string>();
    std::vector<std::string> all = {own};
    for (int rank = 1; rank < size(); ++rank) all.push_back(receive(rank));
    return all;
  }
  std::string broadcast(const std::string& text) const override {
    if (rank_ > 0) return receive(0);
    for (int rank = 1; rank < size(); ++rank) send(rank, text);
    return text;
  }
  void all_to_all(const std::byte*, const std::vector<int64_t>&, std::byte*, const std::vector<int64_t>&) const override {
    throw std::logic_error("only loading calls this");
  }

  static constexpr int kPatience_s = 20;

 private:
  void send(int rank, const std::string& text) const {
    const uint64_t size = text.size();
    put(rank, &size, sizeof(size));
    put(rank, text.data(), size);
  }
  std::string receive(int rank) const {
    uint64_t size = 0;
    take(rank, &size, sizeof(size));
    std::string text(size, '\0');
    take(rank, text.data(), size);
    return text;
  }
  void put(int rank, const void* data, size_t size) const {
    const auto* next = static_cast<const char*>(data);
    for (size_t done = 0; done < size;) {
      const ssize_t sent = ::send(sockets_[static_cast<size_t>(rank)], next + done, size - done, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) throw base::CommError("rank {} is gone: {}", rank, std::strerror(errno));
      done += static_cast<size_t>(sent);
    }
  }
  void take(int rank, void* data, size_t size) const {
    auto* next = static_cast<char*>(data);
    for (size_t done = 0; done < size;) {
      const ssize_t got = ::recv(sockets_[static_cast<size_t>(rank)], next + done, size - done, 0);
      if (got == 0) throw base::CommError("rank {} is gone: it closed its connection", rank);
      if (got < 0 && errno == EINTR) continue;  // io_uring interrupts what the thread waits for next
      if (got < 0 && errno == EAGAIN) throw base::CommError("rank {} said nothing for {} s", rank, kPatience_s);
      if (got < 0) throw base::CommError("rank {} is gone: {}", rank, std::strerror(errno));
      done += static_cast<size_t>(got);
    }
  }
  int rank_;
  std::vector<int> sockets_;
};

/// How a process ended: by a signal, or with what it threw ("CheckpointError: …" or "another error: …"; "" when it returned).
struct ProcessEnd {
  int signal = 0;
  std::string error;
};

inline std::vector<ProcessEnd> run_processes(int size, const std::function<void(const Team&)>& body) {
  const auto ranks = static_cast<size_t>(size);
  std::vector<int> of_first(ranks, -1), of_others(ranks, -1);
  std::vector<std::pair<int, int>> results(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    results[rank] = {ends[0], ends[1]};
    if (rank == 0) continue;
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) throw std::runtime_error("socketpair");
    const timeval patience{ProcessTeam::kPatience_s, 0};
    for (const int end : ends) ::setsockopt(end, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    of_first[rank] = ends[0], of_others[rank] = ends[1];
  }
  const auto run = [&](size_t own) {
    // Ends of others must go: as long as anybody holds one, nobody sees that they died.
    std::vector<int> sockets(ranks, -1);
    for (size_t rank = 1; rank < ranks; ++rank) {
      if (own == 0) sockets[rank] = of_first[rank];
      else ::close(of_first[rank]);
      if (own == rank) sockets[0] = of_others[rank];
      else ::close(of_others[rank]);
    }
    std::string error;
    try {
      body(ProcessTeam(static_cast<int>(own), sockets));
    } catch (const base::CheckpointError& failure) {
      error = std::string("CheckpointError: ") + failure.what();
    } catch (const std::exception& failure) {
      error = std::string("another error: ") + failure.what();
    }
    const ssize_t told = ::write(results[own].second, error.data(), error.size());
    ::_exit(told == static_cast<ssize_t>(error.size()) ? 0 : 1);
  };
  std::vector<pid_t> children;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) throw std::runtime_error("fork");
    if (child == 0) run(rank);
    children.push_back(child);
  }
  for (const auto& ends : {of_first, of_others})
    for (const int end : ends)
      if (end >= 0) ::close(end);
  std::vector<ProcessEnd> out(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    int status = 0;
    ::waitpid(children[rank], &status, 0);
    if (WIFSIGNALED(status)) out[rank].signal = WTERMSIG(status);
    ::close(results[rank].second);
    char part[4096];
    for (ssize_t got = 0; (got = ::read(results[rank].first, part, sizeof(part))) > 0;)
      out[rank].error.append(part, static_cast<size_t>(got));
    ::close(results[rank].first);
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) out[rank].error += "another error: the process ended badly";
  }
  return out;
}

}  // namespace ingot::checkpoint
