#include "resilience/launch.h"

#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "comm/store.h"
#include "resilience/supervisor.h"

namespace ingot::resilience {
namespace {

using base::CommError;
using base::UsageError;

struct Address {
  std::string host;
  int port;
};

Address parse_address(const std::string& text) {
  const auto colon = text.rfind(':');
  int64_t port = 0;
  try {
    if (colon != std::string::npos && colon > 0) port = std::stoll(text.substr(colon + 1));
  } catch (const std::exception&) {
  }
  if (port < 1 || port > 65535) throw UsageError("--rendezvous {}: write HOST:PORT, for instance --rendezvous node0:29500", text);
  return {text.substr(0, colon), static_cast<int>(port)};
}

// The store of the job: held by the launcher of node 0, so that it outlives ranks and restarts.
class Board {
 public:
  explicit Board(const LaunchOptions& o) : nodes_(o.nnodes), node_(o.node_rank) {
    const auto address = o.rendezvous.empty() ? Address{"127.0.0.1", 0} : parse_address(o.rendezvous);
    try {
      store_ = comm::open_store(address.host, address.port, node_ == 0, std::chrono::duration<double>(o.rendezvous_timeout_s));
    } catch (const std::exception& failure) {
      const std::string cause = failure.what();
      throw CommError("node {} {} {}:{}: {}. {}", node_, node_ == 0 ? "could not listen at" : "could not reach", address.host, address.port,
                      cause.substr(0, cause.find('\n')),
                      node_ == 0 ? "Is the port taken, or the address another machine's?"
                                 : "Does the launcher of node 0 run, and does this machine reach that address and port?");
    }
    host_ = address.host;
    if (nodes_ > 1) base::log_info("node {} of {} is at {}:{}", node_, nodes_, host_, port());
  }

  const std::string& host() const { return host_; }
  int port() const { return store_->getPort(); }

  void say_failed(int attempt, const std::string& what) {
    try {
      const auto text = fmt::format("{} on node {} ({})", what, node_, base::host_name());
      store_->compareSet(key(attempt), {}, {text.begin(), text.end()});  // the first one stays
    } catch (const std::exception&) {
    }
  }

  std::string failure_elsewhere(int attempt) {
    if (nodes_ == 1) return "";
    try {
      if (!store_->check({key(attempt)})) return "";
      const auto bytes = store_->get(key(attempt));
      return {bytes.begin(), bytes.end()};
    } catch (const std::exception&) {
      return "the launcher of node 0 is gone";
    }
  }

  /// At the end: waits a moment for the other launchers, whose ranks still use the store or have yet to read why the job failed.
  void leave(int attempt, double patience_s) {
    try {
      meet(attempt, patience_s);
    } catch (const base::Error&) {
    }
  }

  // All launchers have ended this attempt; the last to come lets the others go on.
  void meet(int attempt, double timeout_s) {
    if (nodes_ == 1) return;
    const auto name = fmt::format("launcher/ended/{}", attempt);
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
    try {
      store_->add(name, 1);
      while (store_->add(name, 0) < nodes_) {
        if (std::chrono::steady_clock::now() > until)
          throw CommError("only {} of {} launchers came to restart within {:g} s", store_->add(name, 0), nodes_, timeout_s);
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
    } catch (const base::Error&) {
      throw;
    } catch (const std::exception&) {
      throw CommError("the launcher of node 0 is gone");
    }
  }

 private:
  static std::string key(int attempt) { return fmt::format("launcher/failed/{}", attempt); }
  int64_t nodes_, node_;
  std::string host_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

std::vector<RankProcess> ranks_of(const LaunchOptions& o, const Board& board, int attempt) {
  // As torchrun: without a choice of the user's, the ranks of a machine share its cores.
  const int threads = std::max<int>(1, base::usable_cores() / static_cast<int>(o.ranks));
  std::vector<RankProcess> ranks;
  for (int64_t local = 0; local < o.ranks; ++local) {
    const int64_t rank = o.node_rank * o.ranks + local;
    RankProcess process{static_cast<int>(rank),
                        {{"RANK", std::to_string(rank)},
                         {"WORLD_SIZE", std::to_string(o.nnodes * o.ranks)},
                         {"LOCAL_RANK", std::to_string(local)},
                         {"LOCAL_WORLD_SIZE", std::to_string(o.ranks)},
                         {"MASTER_ADDR", board.host()},
                         {"MASTER_PORT", std::to_string(board.port())},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                         {"TORCHELASTIC_RESTART_COUNT", std::to_string(attempt)}}};
    if (base::environment().omp_num_threads.empty()) process.environment.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
    ranks.push_back(std::move(process));
  }
  return ranks;
}

constexpr int kUsageStatus = 2;  // starting again would only repeat it

}  // namespace

int launch(const LaunchOptions& o) {
  if (o.command.empty())
    throw UsageError("ingot launch needs a command, for instance: ingot launch -n 2 -- ingot train configs/zaya1-nano.toml");
  if (o.node_rank >= o.nnodes)
    throw UsageError("--node-rank {} with --nnodes {}: nodes are numbered from 0 to {}", o.node_rank, o.nnodes, o.nnodes - 1);
  if (o.nnodes > 1 && o.rendezvous.empty())
    throw UsageError("--nnodes {} needs --rendezvous HOST:PORT, the same on every node: where node 0 is", o.nnodes);
  Board board(o);
  const StopSignal stop("\nasking the ranks to stop; once more to stop at once\n", SecondSignal::ends_at_once);
  auto command = o.command;
  if (command[0] == "ingot") command[0] = base::own_program();  // the one that launches, wherever PATH points
  for (int attempt = 0;; ++attempt) {
    const auto outcome = supervise(command, ranks_of(o, board, attempt), stop,
                                   {.grace_s = o.grace_s, .failure_elsewhere = [&] { return board.failure_elsewhere(attempt); }});
    if (outcome.succeeded) {
      board.leave(attempt, o.grace_s);
      return 0;
    }
    const auto& first = outcome.first;
    if (first.rank >= 0) board.say_failed(attempt, first.description);
    base::log_error("{}", report_of(first));
    if (outcome.was_stopped || first.exit_status == kUsageStatus || attempt >= o.max_restarts) {
      if (o.max_restarts > 0 && attempt >= o.max_restarts) base::log_error("given up after {} restart{}", attempt, attempt == 1 ? "" : "s");
      board.leave(attempt, o.grace_s);
      return first.exit_status == kUsageStatus ? kUsageStatus : 1;
    }
    board.meet(attempt, o.rendezvous_timeout_s);
    base::log_warning("starting all ranks again, restart {} of {}; ingot train goes on from the last checkpoint", attempt + 1,
                      o.max_restarts);
  }
}

}  // namespace ingot::resilience
