#include "report/watch/server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "base/error.h"
#include "report/run/fake_run.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Clock = std::chrono::steady_clock;

class WatchServerTest : public ::testing::Test {
 protected:
  fs::path folder = fs::temp_directory_path() / ("ingot_watch_" + std::to_string(::getpid()));
  void SetUp() override { write_fake_run(folder / "run", {.steps = 50, .finished = 20}); }
  void TearDown() override { fs::remove_all(folder); }
};

// A connection without a library's help, and what comes back until its end.
class RawConnection {
 public:
  explicit RawConnection(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval limit{20, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawConnection() { ::close(socket_); }
  bool send(const std::string& bytes) const {
    return ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  std::string receive() const {
    std::string all;
    char piece[4096];
    for (ssize_t got = 0; (got = ::recv(socket_, piece, sizeof(piece), 0)) > 0;) all.append(piece, static_cast<size_t>(got));
    return all;
  }

 private:
  const int socket_;
};

std::string answer_to(int port, const std::string& request) {
  const RawConnection connection(port);
  connection.send(request);
  return connection.receive();
}

const std::string kGet = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n";

TEST_F(WatchServerTest, a_page_is_sent_again_only_when_it_has_changed) {
  const WatchServer server({folder / "run"}, 0, 5);
  httplib::Client client("127.0.0.1", server.port());
  const auto whole = client.Get("/");
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->status, 200);
  EXPECT_THAT(whole->body, AllOf(StartsWith("<!doctype html>"), HasSubstr("is at step 20 of 50")));
  const auto tag = whole->get_header_value("ETag");
  const auto same = client.Get("/main", httplib::Headers{{"If-None-Match", tag}});
  EXPECT_EQ(same->status, 304);
  EXPECT_EQ(same->body, "");
  std::ofstream(folder / "run" / "metrics.jsonl", std::ios::app) << "{\"step\":21,\"steps\":50,\"loss\":3.5}\n";
  std::string body;
  for (int tries = 0; tries < 1000 && body.empty(); ++tries) {
    const auto changed = client.Get("/main", httplib::Headers{{"If-None-Match", tag}});
    body = changed->status == 200 ? changed->body : "";
    if (body.empty()) ::usleep(10000);
  }
  EXPECT_THAT(body, AllOf(StartsWith("<header>"), HasSubstr("is at step 21 of 50")));
  EXPECT_EQ(client.Get("/run.json")->status, 404);
  EXPECT_EQ(client.Post("/", "x", "text/plain")->status / 100, 4);
}

TEST_F(WatchServerTest, what_is_no_request_is_survived) {
  const WatchServer server({folder / "run"}, 0, 1);
  std::string ranges = "Range: bytes=0-0";
  while (ranges.size() < 7000) ranges += ",0-0";
  for (const auto& request : std::vector<std::string>{
           "", "\r\n\r\n", std::string(300, '\0'), "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\xff\xfe\x80 / HTTP/1.1\r\n\r\n",
           "GET " + std::string(100'000, 'a') + " HTTP/1.1\r\n\r\n", "GET /%zz%00%ff%u12 HTTP/1.1\r\nHost: localhost\r\n\r\n",
           "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999\r\n\r\nx",
           "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n",
           kGet + "Content-Length: -1\r\n\r\n", kGet + ranges + "\r\n\r\n", kGet + "Range: bytes=99999999999999999999-\r\n\r\n"}) {
    const RawConnection connection(server.port());
    connection.send(request);
    // The answer may be a refusal or none; a page in many copies it is not.
    EXPECT_LT(answer_to(server.port(), request + "\r\n\r\n").size(), 1 << 20) << request.substr(0, 60);
  }
  EXPECT_THAT(answer_to(server.port(), kGet + "\r\n"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("is at step 20 of 50")));
}

TEST_F(WatchServerTest, headers_without_end_are_cut_off) {
  const WatchServer server({folder / "run"}, 0, 5);
  const RawConnection connection(server.port());
  connection.send(kGet);
  size_t sent = 0;
  while (sent < 20000 && connection.send("X-Header-Of-No-Use: " + std::string(1000, 'x') + "\r\n")) ++sent;
  EXPECT_LT(sent, 20000u) << "20 MB of headers were taken";
  EXPECT_THAT(answer_to(server.port(), kGet + "\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(WatchServerTest, whoever_sends_or_takes_too_slowly_is_cut_off_at_the_deadline) {
  const WatchServer server({folder / "run"}, 0, 0.5);
  const auto start = Clock::now();
  std::vector<std::unique_ptr<RawConnection>> idle;
  for (int i = 0; i < 20; ++i) idle.push_back(std::make_unique<RawConnection>(server.port()));
  const RawConnection dripping(server.port());
  const auto request = kGet + std::string(1000, ' ');
  size_t sent = 0;
  while (sent < request.size() && dripping.send(request.substr(sent, 1))) ++sent, ::usleep(20000);
  EXPECT_LT(sent, request.size());
  for (const auto& connection : idle) EXPECT_EQ(connection->receive(), "");
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(15));
  EXPECT_THAT(answer_to(server.port(), kGet + "\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(WatchServerTest, ends_at_once_though_somebody_is_connected) {
  auto server = std::make_unique<WatchServer>(std::vector<fs::path>{folder / "run"}, 0, 60);
  std::vector<std::unique_ptr<RawConnection>> idle;
  for (int i = 0; i < 20; ++i) idle.push_back(std::make_unique<RawConnection>(server->port()));
  const auto start = Clock::now();
  server.reset();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
}

TEST_F(WatchServerTest, names_of_other_hosts_are_refused) {
  const WatchServer server({folder / "run"}, 0, 5);
  const auto asked_as = [&](const std::string& host) {
    return answer_to(server.port(), "GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n").substr(0, 12);
  };
  for (const char* host : {"127.0.0.1", "127.0.0.1:8008", "localhost", "localhost:1"}) EXPECT_EQ(asked_as(host), "HTTP/1.1 200") << host;
  for (const char* host : {"evil.example", "127.0.0.1.evil.example:80", "", "localhost:1:2"})
    EXPECT_EQ(asked_as(host), "HTTP/1.1 403") << host;
}

TEST_F(WatchServerTest, a_port_that_is_taken_is_named) {
  const WatchServer server({folder / "run"}, 0, 5);
  try {
    const WatchServer other({folder / "run"}, server.port(), 5);
    FAIL() << "two servers share a port";
  } catch (const base::UsageError& wrong) {
    EXPECT_THAT(wrong.what(), AllOf(HasSubstr("127.0.0.1:" + std::to_string(server.port())), HasSubstr("--port")));
  }
}

}  // namespace
}  // namespace ingot::report
