// The last step's numbers at http://HOST:PORT/metrics in Prometheus' text format. One thread updates; requests are answered by
// two threads of the endpoint's own, which read only what update() published.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "train/metrics/step_record.h"

namespace ingot::train {

/// That it is one of http/listen_address.h. Throws ConfigError naming the setting.
void check_prometheus_address(std::string_view address);

class PrometheusEndpoint {
 public:
  /// Listens from here on. Throws ConfigError when the address is malformed or taken.
  explicit PrometheusEndpoint(std::string_view address);
  /// Stops listening and waits for the requests under way (at most the one-second time-outs of their sockets).
  ~PrometheusEndpoint();

  void update(const StepRecord& record);
  /// The port it listens on, which matters when the address asked for port 0.
  int port() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ingot::train
