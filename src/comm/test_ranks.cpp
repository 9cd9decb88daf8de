#include "comm/test_ranks.h"

#include <ATen/Parallel.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"

namespace ingot::comm {
namespace {

std::string text_of(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const std::exception& failure) {
    return std::string(failure.what()).empty() ? "an error without words" : failure.what();
  }
}

std::vector<std::string> outcomes_of_threads(int size, const std::function<void(World&)>& body, const WorldOptions& options) {
  std::vector<std::string> outcomes(static_cast<size_t>(size));
  try {
    run_ranks(
        size,
        [&](World& world) {
          auto& outcome = outcomes[static_cast<size_t>(world.rank())];
          outcome = text_of([&] { body(world); });
        },
        options);
  } catch (const std::exception& failure) {
    outcomes[0] += failure.what();
  }
  return outcomes;
}

std::string read_all(int descriptor) {
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(descriptor, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
  close(descriptor);
  return text;
}

std::vector<std::string> outcomes_of_processes(int size, const std::function<void(World&)>& body, const WorldOptions& options) {
  const int port = free_port();
  std::vector<pid_t> children;
  std::vector<int> pipes;
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      at::set_num_threads(1);
      base::set_log_level(base::LogLevel::warning);
      const auto outcome = text_of([&] {
        RankEnvironment environment;
        environment.rank = environment.local_rank = rank;
        environment.size = size;
        environment.address = "127.0.0.1";
        environment.port = port;
        environment.launcher = "test";
        const auto world = World::join(environment, false, options);
        body(*world);
      });
      (void)!write(ends[1], outcome.data(), outcome.size());
      _exit(outcome.empty() ? 0 : 1);
    }
    close(ends[1]);
    children.push_back(child);
    pipes.push_back(ends[0]);
  }
  std::vector<std::string> outcomes;
  for (int rank = 0; rank < size; ++rank) {
    auto text = read_all(pipes[static_cast<size_t>(rank)]);
    int status = 0;
    waitpid(children[static_cast<size_t>(rank)], &status, 0);
    if (WIFSIGNALED(status)) text = fmt::format("signal {}", WTERMSIG(status));
    outcomes.push_back(text);
  }
  return outcomes;
}

}  // namespace

std::string name_of(Fabrics fabric) { return fabric == Fabrics::threads ? "threads" : fabric == Fabrics::gloo ? "gloo" : "shared_memory"; }

std::vector<std::string> outcomes_on(Fabrics fabric, int size, const std::function<void(World&)>& body, WorldOptions options) {
  if (fabric == Fabrics::threads) return outcomes_of_threads(size, body, options);
  options.backend = name_of(fabric);
  return outcomes_of_processes(size, body, options);
}

void run_on(Fabrics fabric, int size, const std::function<void(World&)>& body, WorldOptions options) {
  const auto outcomes = outcomes_on(fabric, size, body, options);
  for (size_t rank = 0; rank < outcomes.size(); ++rank) EXPECT_EQ(outcomes[rank], "") << "rank " << rank;
}

int free_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof name;
  if (bind(descriptor, reinterpret_cast<sockaddr*>(&name), length) != 0 ||
      getsockname(descriptor, reinterpret_cast<sockaddr*>(&name), &length) != 0)
    throw std::runtime_error("no free port");
  close(descriptor);
  return ntohs(name.sin_port);
}

}  // namespace ingot::comm
