#include "train/metrics/prometheus.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <chrono>

#include "base/error.h"
#include "http/listen_address.h"
#include "http/server.h"

namespace ingot::train {

static http::HostPort address_of(std::string_view address) {
  try {
    return http::parse_listen_address(address);
  } catch (const base::ConfigError& wrong) {
    throw base::ConfigError("log.prometheus = \"{}\" {}, or \"\" to switch it off", address, wrong.what());
  }
}

void check_prometheus_address(std::string_view address) { address_of(address); }

namespace {

prometheus::Gauge& gauge(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
}
prometheus::Counter& counter(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({});
}

// Names follow Prometheus' own rules: base units (seconds, bytes, ratios), `_total` for what only grows.
struct Meters {
  prometheus::Registry registry;
  prometheus::Gauge& step = gauge(registry, "ingot_step", "Last finished training step.");
  prometheus::Gauge& steps = gauge(registry, "ingot_steps", "Steps of the whole run.");
  prometheus::Gauge& tokens = gauge(registry, "ingot_tokens", "Tokens trained on since step 1, over all ranks.");
  prometheus::Gauge& loss = gauge(registry, "ingot_loss", "Training loss, nats per token.");
  prometheus::Gauge& grad_norm = gauge(registry, "ingot_grad_norm", "Global gradient norm before clipping.");
  prometheus::Gauge& lr = gauge(registry, "ingot_learning_rate", "Learning rate.");
  prometheus::Gauge& step_s = gauge(registry, "ingot_step_seconds", "Duration of the last step.");
  prometheus::Gauge& predicted_step_s = gauge(registry, "ingot_predicted_step_seconds", "Duration of a step as planned.");
  prometheus::Gauge& tokens_per_s = gauge(registry, "ingot_tokens_per_second", "Throughput over all ranks.");
  prometheus::Gauge& flops = gauge(registry, "ingot_model_flops_per_second", "Model FLOP/s per rank.");
  prometheus::Gauge& mfu = gauge(registry, "ingot_mfu_ratio", "Model FLOPs utilisation, 0 to 1.");
  prometheus::Gauge& memory = gauge(registry, "ingot_memory_peak_bytes", "Peak memory so far.");
  prometheus::Gauge& predicted_memory = gauge(registry, "ingot_predicted_memory_bytes", "Peak memory as planned.");
  prometheus::Gauge& eta_s = gauge(registry, "ingot_eta_seconds", "Time left.");
  prometheus::Gauge& time_s = gauge(registry, "ingot_last_step_timestamp_seconds", "Unix time at the end of the last step.");
  prometheus::Counter& comm = counter(registry, "ingot_comm_sent_bytes_total", "Bytes sent by this rank since the process started.");
  prometheus::Counter& skipped = counter(registry, "ingot_skipped_steps_total", "Steps skipped for NaN or Inf since the process started.");
};

}  // namespace

struct PrometheusEndpoint::State {
  Meters meters;
  int port = 0;
  http::Server server{{.request_bytes = 8 << 10,
                       .request = std::chrono::seconds(1),
                       .stall = std::chrono::seconds(1),
                       .answer = std::chrono::seconds(5),
                       .connections = 2}};
  // Only runs that have them show these.
  prometheus::Gauge* validation_loss = nullptr;
  prometheus::Gauge* imbalance = nullptr;
  prometheus::Family<prometheus::Gauge>* evaluations = nullptr;

  void configure() {
    server.set_payload_max_length(1024);
    server.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(prometheus::TextSerializer().Serialize(meters.registry.Collect()), "text/plain; version=0.0.4; charset=utf-8");
    });
    server.Get("/", [](const httplib::Request&, httplib::Response& response) {
      response.set_content("ingot: the metrics are at /metrics\n", "text/plain; charset=utf-8");
    });
  }
};

PrometheusEndpoint::PrometheusEndpoint(std::string_view address) : state_(std::make_unique<State>()) {
  const auto where = address_of(address);
  state_->configure();
  state_->port = state_->server.start(where.host, where.port);
  if (state_->port <= 0) {
    throw base::ConfigError(
        "log.prometheus = \"{}\": cannot listen there (the port is taken, needs root or the host is not an address of this machine); "
        "choose another port, or \"\" to switch it off",
        address);
  }
}

PrometheusEndpoint::~PrometheusEndpoint() = default;

int PrometheusEndpoint::port() const { return state_->port; }

void PrometheusEndpoint::update(const StepRecord& record) {
  Meters& m = state_->meters;
  m.step.Set(static_cast<double>(record.step));
  m.steps.Set(static_cast<double>(record.steps));
  m.tokens.Set(static_cast<double>(record.tokens));
  m.loss.Set(record.loss);
  m.grad_norm.Set(record.grad_norm);
  m.lr.Set(record.lr);
  m.step_s.Set(record.step_ms / 1e3);
  m.predicted_step_s.Set(record.predicted_step_ms / 1e3);
  m.tokens_per_s.Set(record.tokens_per_s);
  m.flops.Set(record.tflops * 1e12);
  m.mfu.Set(record.mfu);
  m.memory.Set(static_cast<double>(record.memory_peak_bytes));
  m.predicted_memory.Set(static_cast<double>(record.predicted_memory_bytes));
  m.eta_s.Set(record.eta_s);
  m.time_s.Set(record.time_s);
  m.comm.Increment(static_cast<double>(record.comm_bytes));
  if (record.skipped) m.skipped.Increment();
  if (record.validation_loss) {
    if (!state_->validation_loss)
      state_->validation_loss = &gauge(m.registry, "ingot_validation_loss", "Last validation loss, nats per token.");
    state_->validation_loss->Set(*record.validation_loss);
  }
  for (const auto& evaluation : record.evaluations) {
    if (!state_->evaluations)
      state_->evaluations = &prometheus::BuildGauge()
                                 .Name("ingot_evaluation")
                                 .Help("Last value of each metric of the tasks of train.evaluations.")
                                 .Register(m.registry);
    for (const auto& metric : evaluation.metrics)
      state_->evaluations->Add({{"task", evaluation.task}, {"metric", metric.name}}).Set(metric.value);
  }
  if (record.expert_load) {
    if (!state_->imbalance)
      state_->imbalance =
          &gauge(m.registry, "ingot_expert_load_imbalance_ratio", "Load imbalance of the experts: most tokens over the mean.");
    state_->imbalance->Set(record.expert_load->imbalance());
  }
}

}  // namespace ingot::train
