#include "train/metrics/prometheus.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "base/error.h"

namespace ingot::train {
namespace {

using ::testing::HasSubstr;

// A client of its own, by plain sockets, so that the server's library is not tested by itself. "" when nobody listens.
std::string http_get(int port, const std::string& path) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval deadline{5, 0};
  ::setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof(deadline));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    EXPECT_EQ(::send(descriptor, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
    char buffer[4096];
    for (ssize_t got = 0; (got = ::recv(descriptor, buffer, sizeof(buffer), 0)) > 0;) answer.append(buffer, static_cast<size_t>(got));
  }
  ::close(descriptor);
  return answer;
}

TEST(Prometheus, a_real_request_gets_the_last_step_in_text_format) {
  PrometheusEndpoint endpoint("127.0.0.1:0");
  StepRecord record;
  record.step = 12;
  record.loss = 3.25;
  record.step_ms = 1500;
  record.comm_bytes = 1000;
  endpoint.update(record);
  record.evaluations = {{"task \"a\"", 4, {{"acc", 0.25, 0.1, true}}}};
  endpoint.update(record);
  record.evaluations[0].metrics[0].value = 0.5;
  record.comm_bytes = 0;
  record.step = 13;
  record.skipped = true;
  endpoint.update(record);
  const auto answer = http_get(endpoint.port(), "/metrics");
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("text/plain; version=0.0.4"));
  for (const char* line :
       {"# TYPE ingot_loss gauge\n", "\ningot_step 13\n", "\ningot_loss 3.25\n", "\ningot_step_seconds 1.5\n",
        "\ningot_evaluation{metric=\"acc\",task=\"task \\\"a\\\"\"} 0.5\n", "# TYPE ingot_comm_sent_bytes_total counter\n",
        "\ningot_comm_sent_bytes_total 2000\n", "\ningot_skipped_steps_total 1\n"})
    EXPECT_THAT(answer, HasSubstr(line));
  EXPECT_EQ(answer.find("ingot_expert_load"), std::string::npos);
  EXPECT_THAT(http_get(endpoint.port(), "/../etc/passwd"), HasSubstr(" 404 "));
}

TEST(Prometheus, stops_at_once_and_frees_the_port) {
  int port = 0;
  const auto begin = std::chrono::steady_clock::now();
  {
    const PrometheusEndpoint endpoint("127.0.0.1:0");
    port = endpoint.port();
  }
  { const PrometheusEndpoint again("127.0.0.1:" + std::to_string(port)); }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  EXPECT_EQ(http_get(port, "/metrics"), "");
}

TEST(Prometheus, a_silent_client_does_not_hold_up_the_end) {
  int silent = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto begin = std::chrono::steady_clock::now();
  {
    const PrometheusEndpoint endpoint("127.0.0.1:0");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(endpoint.port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(silent, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(::send(silent, "GET /metr", 9, MSG_NOSIGNAL), 9);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
  ::close(silent);
}

TEST(Prometheus, a_taken_port_is_refused_with_the_next_step) {
  const PrometheusEndpoint first("127.0.0.1:0");
  const auto address = "127.0.0.1:" + std::to_string(first.port());
  try {
    const PrometheusEndpoint second(address);
    FAIL() << "two endpoints share " << address;
  } catch (const base::ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr(address));
    EXPECT_THAT(error.what(), HasSubstr("choose another port"));
  }
}

TEST(Prometheus, addresses_are_read_or_refused) {
  check_prometheus_address("localhost:65535");
  EXPECT_THROW(check_prometheus_address("localhost"), base::ConfigError);
  EXPECT_THROW(PrometheusEndpoint("no.such.host.invalid:9400"), base::ConfigError);
}

}  // namespace
}  // namespace ingot::train
