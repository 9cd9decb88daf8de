#include "http/server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <vector>

namespace ingot::http {
namespace {

class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval limit{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(socket_.descriptor(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ::setsockopt(socket_.descriptor(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    EXPECT_EQ(::connect(socket_.descriptor(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  // False where the server has closed.
  bool send(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t sent = ::send(socket_.descriptor(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      at += static_cast<size_t>(sent);
    }
    return true;
  }
  // All until the server closes, with "<reset>" where it does so rudely.
  std::string receive() {
    std::string all;
    char buffer[4096];
    for (;;) {
      const ssize_t got = ::recv(socket_.descriptor(), buffer, sizeof(buffer), 0);
      if (got <= 0) return got < 0 ? all + "<reset>" : all;
      all.append(buffer, static_cast<size_t>(got));
    }
  }
  std::string ask(const std::string& bytes) {
    send(bytes);
    return receive();
  }

 private:
  Socket socket_;
};

class HttpServer : public testing::Test {
 protected:
  HttpServer() {
    server_.set_payload_max_length(kMostBytes);
    server_.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
      if (request.path != "/locked") return httplib::Server::HandlerResponse::Unhandled;
      response.status = 401;
      response.set_content("no", "text/plain");
      return httplib::Server::HandlerResponse::Handled;
    });
    server_.Get("/", [](const auto&, auto& response) { response.set_content("here", "text/plain"); });
    server_.Post("/length",
                 [](const auto& request, auto& response) { response.set_content(std::to_string(request.body.size()), "text/plain"); });
    port_ = server_.start("127.0.0.1", 0);
  }

  static std::string post(const std::string& path, size_t bytes) {
    return "POST " + path + " HTTP/1.1\r\nContent-Length: " + std::to_string(bytes) + "\r\n\r\n";
  }

  static constexpr size_t kMostBytes = 4 << 20;
  Server server_{{.request_bytes = kMostBytes, .request = std::chrono::seconds(2), .connections = 4, .incoming = 16}};
  int port_ = 0;
};

const std::string kGet = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

// Was a bug: the socket was closed while its client still sent, and the reset that came of it could overtake the answer.
TEST_F(HttpServer, answer_to_an_unread_body_reaches_the_client) {
  for (int round = 0; round < 5; ++round) {
    Client refused(port_);
    EXPECT_TRUE(refused.send(post("/locked", 3 * kMostBytes) + std::string(3 * kMostBytes, 'a')));
    const auto answer = refused.receive();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 401") && answer.ends_with("no")) << answer;
    Client too_long(port_);
    EXPECT_TRUE(too_long.send(post("/length", 3 * kMostBytes) + std::string(3 * kMostBytes, 'a')));
    const auto other = too_long.receive();
    EXPECT_TRUE(other.starts_with("HTTP/1.1 413") && !other.ends_with("<reset>")) << other;
  }
}

TEST_F(HttpServer, bodies_come_whole_in_pieces_and_in_chunks) {
  Client whole(port_);
  EXPECT_TRUE(whole.ask(post("/length", kMostBytes) + std::string(kMostBytes, 'a')).ends_with("\r\n\r\n4194304"));
  Client pieces(port_);
  for (const char* piece : {"POST /length HTTP/1.1\r\nContent-Le", "ngth: 4\r\n\r", "\nab", "cd"}) {
    EXPECT_TRUE(pieces.send(piece));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(pieces.receive().ends_with("\r\n\r\n4"));
  Client chunks(port_);
  EXPECT_TRUE(
      chunks.ask("POST /length HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").ends_with("\r\n\r\n5"));
  Client asked(port_);
  EXPECT_TRUE(asked.send("POST /length HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto answer = asked.ask("ab");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n2")) << answer;
  Client form(port_);
  EXPECT_TRUE(form.ask("POST /length HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 10000\r\n\r\n" +
                       std::string(10000, 'a'))
                  .ends_with("\r\n\r\n10000"));
}

// Was a weakness: a thread waited for each request, and as many idle connections as there are threads kept everyone out.
TEST_F(HttpServer, idle_and_slow_clients_keep_nobody_out) {
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 60; ++i) {
    slow.push_back(std::make_unique<Client>(port_));
    if (i % 2 == 0) slow.back()->send(i % 4 == 0 ? "GET / HT" : post("/length", 1000) + "abc");
    const auto begin = Clock::now();
    EXPECT_TRUE(Client(port_).ask(kGet).ends_with("here"));
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
  }
  EXPECT_TRUE(slow.back()->receive().empty()) << "closed without a word when nothing has come";
  EXPECT_TRUE(slow[58]->receive().starts_with("HTTP/1.1 408"));
}

TEST_F(HttpServer, what_is_no_request_is_refused) {
  EXPECT_TRUE(Client(port_).ask("GET /\r\n\r\n").starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(Client(port_).ask("\r\n\r\n").starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(Client(port_).ask("GET /" + std::string(100000, 'a')).starts_with("HTTP/1.1 431"));
  EXPECT_TRUE(Client(port_).ask("POST /length HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n").starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(Client(port_).ask("POST /length HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n").starts_with("HTTP/1.1 413"));
  EXPECT_TRUE(Client(port_).ask(kGet + kGet + "and more").ends_with("here")) << "one answer a connection";
}

TEST_F(HttpServer, large_requests_leave_room_for_small_ones) {
  std::vector<std::unique_ptr<Client>> large;
  int refused = 0;
  for (int i = 0; i < 12; ++i) {
    large.push_back(std::make_unique<Client>(port_));
    large.back()->send(post("/length", kMostBytes) + std::string(kMostBytes - 1, 'a'));
  }
  EXPECT_TRUE(Client(port_).ask(kGet).ends_with("here"));
  for (const auto& client : large) refused += client->ask("a").starts_with("HTTP/1.1 503") ? 1 : 0;
  EXPECT_GE(refused, 3);
  EXPECT_LE(refused, 5);
  EXPECT_TRUE(Client(port_).ask(post("/length", kMostBytes) + std::string(kMostBytes, 'a')).ends_with("\r\n\r\n4194304"));
}

}  // namespace
}  // namespace ingot::http
