#include "comm/process_fabric.h"

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "comm/gloo_backend.h"
#include "comm/host_and_device.h"
#include "comm/nccl_backend.h"
#include "comm/store.h"

namespace ingot::comm {
namespace {

using base::CommError;
using Bytes = std::vector<uint8_t>;

Bytes to_bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string to_text(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }
std::chrono::milliseconds to_ms(std::chrono::duration<double> time) { return std::chrono::duration_cast<std::chrono::milliseconds>(time); }

// Processes with the same answer can share memory: same kernel, same namespace of process numbers.
std::string machine_identity() {
  std::string boot;
  try {
    boot = base::read_file("/proc/sys/kernel/random/boot_id", 256);
  } catch (const base::Error&) {
  }
  char processes[128] = {};
  const auto length = readlink("/proc/self/ns/pid", processes, sizeof processes - 1);
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return fmt::format("{}|{}|{}", host, boot, length > 0 ? processes : "");
}

// This machine's address on the way to `address`; no packet is sent.
std::string own_address_towards(const std::string& address, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return "127.0.0.1";
  std::string own = "127.0.0.1";
  for (auto* candidate = found; candidate; candidate = candidate->ai_next) {
    const int descriptor = socket(candidate->ai_family, SOCK_DGRAM, 0);
    if (descriptor < 0) continue;
    sockaddr_storage name{};
    socklen_t length = sizeof name;
    char text[NI_MAXHOST] = {};
    const bool works = connect(descriptor, candidate->ai_addr, candidate->ai_addrlen) == 0 &&
                       getsockname(descriptor, reinterpret_cast<sockaddr*>(&name), &length) == 0 &&
                       getnameinfo(reinterpret_cast<sockaddr*>(&name), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0;
    close(descriptor);
    if (!works) continue;
    own = text;
    break;
  }
  freeaddrinfo(found);
  return own;
}

class ProcessFabric : public Fabric {
 public:
  ProcessFabric(const RankEnvironment& environment, bool is_gpu, const WorldOptions& options)
      : environment_(environment), is_gpu_(is_gpu), options_(options) {
    const auto where = fmt::format("{}:{}", environment.address, environment.port);
    base::log_info("rank {} of {} ({}): meeting at {}{}", environment.rank, environment.size, environment.launcher, where,
                   environment.rank == 0 && !environment.is_store_hosted ? ", which this rank holds" : "");
    try {
      const auto store = open_store(environment.address, environment.port, environment.rank == 0 && !environment.is_store_hosted,
                                    options.rendezvous_timeout);
      // Restarts meet in the same store: each under its own prefix.
      store_ = c10::make_intrusive<c10d::PrefixStore>("ingot/" + environment.attempt, store);
    } catch (const std::exception& failure) {
      throw CommError(
          "rank {} could not reach the meeting place {} within {:g} s: {}. Is rank 0 running, is MASTER_ADDR its address on a network that "
          "this machine reaches, and is port {} open and free?",
          environment.rank, where, options.rendezvous_timeout.count(), first_line(failure.what()), environment.port);
    }
    address_ = own_address_towards(environment.address, environment.port);
    roll_in();
  }

  std::unique_ptr<Backend> connect(const std::string& key, const std::vector<int>& members, int rank) override {
    auto store = c10::make_intrusive<c10d::PrefixStore>(key, store_);
    try {
      if (options_.backend != "nccl" && (options_.backend != "auto" || !is_gpu_)) return connect_hosts(store, members, rank);
      auto gpus = make_nccl_backend(c10::make_intrusive<c10d::PrefixStore>("gpus", store), rank, members, options_.timeout);
      return std::make_unique<HostAndDevice>(connect_hosts(store, members, rank), std::move(gpus));
    } catch (const base::Error&) {
      throw;
    } catch (const std::exception& failure) {
      throw CommError("making the group {} failed: {}", key, first_line(failure.what()));
    }
  }

  std::string description() const override {
    const auto machines = std::set<std::string>(machines_.begin(), machines_.end()).size();
    const auto through = is_gpu_ || options_.backend == "nccl" ? "NCCL"
                         : options_.backend == "gloo"          ? "Gloo"
                         : machines > 1                        ? "shared memory and Gloo"
                                                               : "shared memory";
    return fmt::format("{} machine{}, {}", machines, machines > 1 ? "s" : "", through);
  }

 private:
  std::unique_ptr<Backend> connect_hosts(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& members, int rank) {
    if (options_.backend != "gloo" && are_together(members)) {
      if (auto segment = share(*store, members, rank))
        return std::make_unique<SharedBackend>(segment, rank, members, options_.timeout, options_.delay, may_spin());
    }
    if (options_.backend == "shared_memory")
      throw CommError("the ranks {} cannot share memory: they are on several machines or may not open each other's", members);
    return make_gloo_backend(store, rank, members, address_, options_.timeout, options_.delay);
  }

  // Everyone says where it is and waits for everyone.
  void roll_in() {
    const auto key_of = [](int rank) { return fmt::format("machine/{}", rank); };
    store_->set(key_of(environment_.rank), to_bytes(machine_identity()));
    const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(options_.rendezvous_timeout);
    for (int rank = 0; rank < environment_.size; ++rank) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
      try {
        store_->wait({key_of(rank)}, std::max(left, std::chrono::milliseconds(1)));
        machines_.push_back(to_text(store_->get(key_of(rank))));
      } catch (const std::exception& failure) {
        const auto missing = missing_from(rank);
        throw CommError("rank {} is at the meeting place {}:{}, but {} of {} ranks did not come within {:g} s: {}", environment_.rank,
                        environment_.address, environment_.port, missing.size(), environment_.size, options_.rendezvous_timeout.count(),
                        fmt::join(missing, ", "));
      }
    }
  }

  std::vector<int> missing_from(int first) {
    std::vector<int> missing;
    for (int rank = first; rank < environment_.size; ++rank) {
      try {
        if (!store_->check({fmt::format("machine/{}", rank)})) missing.push_back(rank);
      } catch (const std::exception&) {
        missing.push_back(rank);
      }
    }
    return missing;
  }

  bool are_together(const std::vector<int>& members) const {
    return std::all_of(members.begin(), members.end(),
                       [&](int m) { return machines_[static_cast<size_t>(m)] == machines_[static_cast<size_t>(members.front())]; });
  }

  bool may_spin() const {
    const auto here = std::count(machines_.begin(), machines_.end(), machines_[static_cast<size_t>(environment_.rank)]);
    return here <= base::usable_cores();
  }

  // Null when some member could not map it: then all do without.
  std::shared_ptr<Segment> share(c10d::Store& store, const std::vector<int>& members, int rank) {
    std::shared_ptr<Segment> segment;
    std::string problem;
    try {
      if (rank == 0) {
        segment = Segment::create_shared(static_cast<int>(members.size()));
        store.set("segment", to_bytes(segment->address()));
      } else {
        segment = Segment::map_shared(static_cast<int>(members.size()), to_text(wait_for_key(store, "segment")));
      }
    } catch (const CommError& failure) {
      if (rank == 0) store.set("segment", to_bytes("none"));
      problem = failure.what();
    }
    store.set(fmt::format("mapped/{}", rank), to_bytes(segment ? "yes" : "no"));
    bool all = true;
    for (size_t r = 0; r < members.size(); ++r) all = to_text(wait_for_key(store, fmt::format("mapped/{}", r))) == "yes" && all;
    if (all) return segment;
    base::log_warning("ranks {} communicate over TCP: {}", members,
                      problem.empty() ? "another rank could not map the shared memory" : problem);
    return nullptr;
  }

  Bytes wait_for_key(c10d::Store& store, const std::string& key) {
    store.wait({key}, to_ms(options_.timeout));
    return store.get(key);
  }

  RankEnvironment environment_;
  bool is_gpu_;
  WorldOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::string address_;
  std::vector<std::string> machines_;  // of each rank
};

}  // namespace

std::unique_ptr<Fabric> make_process_fabric(const RankEnvironment& environment, bool is_gpu, const WorldOptions& options) {
  return std::make_unique<ProcessFabric>(environment, is_gpu, options);
}

}  // namespace ingot::comm
