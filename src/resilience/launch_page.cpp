#include "resilience/launch_page.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <atomic>
#include <chrono>
#include <mutex>

#include "base/error.h"
#include "base/log.h"
#include "http/listen_address.h"
#include "http/server.h"

namespace ingot::resilience {
namespace {

using Gauges = prometheus::Family<prometheus::Gauge>;

Gauges& gauges(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

}  // namespace

struct LaunchPage::State {
  State(const comm::HeartbeatBoard& all, int count, std::function<health::HardwareReading()> read_hardware)
      : heartbeats(all), ranks(count), hardware(std::move(read_hardware)) {}

  const comm::HeartbeatBoard& heartbeats;
  const int ranks;
  const std::function<health::HardwareReading()> hardware;
  std::atomic<int> first_rank = 0;
  std::atomic<bool> is_asked_to_drain = false;
  int port = 0;

  std::mutex mutex;
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& failures =
      prometheus::BuildCounter().Name("ingot_launch_failures_total").Help("Failed attempts of the job, by cause.").Register(registry);
  prometheus::Counter& restarts =
      prometheus::BuildCounter().Name("ingot_launch_restarts_total").Help("Times that all ranks began anew.").Register(registry).Add({});
  prometheus::Gauge& nodes = gauges(registry, "ingot_launch_nodes", "Machines at work.").Add({});
  http::Server server{{.request_bytes = 8 << 10,
                       .request = std::chrono::seconds(1),
                       .stall = std::chrono::seconds(1),
                       .answer = std::chrono::seconds(5),
                       .connections = 2}};  // last: it ends first

  // Of the ranks as they are now: those of the attempt before have gone.
  void add_ranks(prometheus::Registry& now) const {
    auto& step = gauges(now, "ingot_rank_step", "Step under way; 0: none.");
    auto& age = gauges(now, "ingot_rank_silent_seconds", "Since the rank's last sign of progress.");
    auto& waiting = gauges(now, "ingot_rank_waiting", "1: it waits for other ranks.");
    auto& process = gauges(now, "ingot_rank_process", "Its process; 0: it has not come so far.");
    auto& times = gauges(now, "ingot_rank_step_seconds", "Of its last step, by what they went into: own, waiting for other ranks, data.");
    for (int i = 0; i < ranks; ++i) {
      const prometheus::Labels of_rank = {{"rank", std::to_string(first_rank + i)}};
      const auto pulse = heartbeats.pulse(i);
      step.Add(of_rank).Set(static_cast<double>(pulse.step));
      process.Add(of_rank).Set(static_cast<double>(pulse.process));
      if (pulse.process == 0) continue;
      age.Add(of_rank).Set(pulse.age_s);
      waiting.Add(of_rank).Set(pulse.is_waiting ? 1 : 0);
      const auto steps = heartbeats.steps(i);
      if (steps.empty()) continue;
      for (const auto& [part, seconds] :
           {std::pair{"own", steps.back().own_s}, {"waiting", steps.back().waited_s}, {"data", steps.back().data_s}})
        times.Add({{"rank", std::to_string(first_rank + i)}, {"part", part}}).Set(seconds);
    }
  }

  // What is absent has no line.
  void add_hardware(prometheus::Registry& now) const {
    auto& counters = gauges(now, "ingot_node_hardware", "What the machine counts of its own faults (health/hardware_counters.h).");
    for (const auto& c : hardware().counters) counters.Add({{"counter", health::name_of(c.counted)}, {"part", c.part}}).Set(c.value);
  }

  void configure() {
    server.set_payload_max_length(1024);
    server.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      prometheus::Registry now;
      add_ranks(now);
      add_hardware(now);
      const std::lock_guard lock(mutex);
      const prometheus::TextSerializer text;
      response.set_content(text.Serialize(registry.Collect()) + text.Serialize(now.Collect()), "text/plain; version=0.0.4; charset=utf-8");
    });
    server.Post("/drain", [this](const httplib::Request& request, httplib::Response& response) {
      if (!is_asked_to_drain.exchange(true)) base::log_info("asked by {} to save and end", request.remote_addr);
      response.set_content("the ranks finish their step, save, and end\n", "text/plain; charset=utf-8");
    });
    server.Get("/", [](const httplib::Request&, httplib::Response& response) {
      response.set_content("ingot launch: GET /metrics; POST /drain saves and ends\n", "text/plain; charset=utf-8");
    });
  }
};

LaunchPage::LaunchPage(const std::string& address, const comm::HeartbeatBoard& heartbeats, int ranks,
                       std::function<health::HardwareReading()> hardware)
    : state_(std::make_unique<State>(heartbeats, ranks, std::move(hardware))) {
  const auto where = [&] {
    try {
      return http::parse_listen_address(address);
    } catch (const base::ConfigError& wrong) {
      throw base::UsageError("--page {} {}", address, wrong.what());
    }
  }();
  for (const auto cause : kCauses) state_->failures.Add({{"cause", name_of(cause)}});  // from 0 on, so that the first one is an increase
  state_->configure();
  state_->port = state_->server.start(where.host, where.port);
  if (state_->port <= 0)
    throw base::UsageError("--page {}: cannot listen there (the port is taken, needs root, or the host is not an address of this machine)",
                           address);
}

LaunchPage::~LaunchPage() = default;

int LaunchPage::port() const { return state_->port; }

void LaunchPage::begin(int first_rank, int64_t nodes) {
  state_->first_rank = first_rank;
  const std::lock_guard lock(state_->mutex);
  state_->nodes.Set(static_cast<double>(nodes));
}

void LaunchPage::count_failure(Cause cause) {
  const std::lock_guard lock(state_->mutex);
  state_->failures.Add({{"cause", name_of(cause)}}).Increment();
}

void LaunchPage::count_restart() {
  const std::lock_guard lock(state_->mutex);
  state_->restarts.Increment();
}

bool LaunchPage::is_asked_to_drain() const { return state_->is_asked_to_drain; }

}  // namespace ingot::resilience
