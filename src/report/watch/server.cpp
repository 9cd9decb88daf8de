#include "report/watch/server.h"

#include <chrono>
#include <string>

#include "base/error.h"
#include "http/server.h"
#include "report/watch/live_page.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;

// Pages of other sites may send requests here, under a name of theirs that leads to 127.0.0.1, and must not read the answers.
bool names_this_machine(const std::string& host) {
  const auto name = host.substr(0, host.rfind(':'));
  return name == "127.0.0.1" || name == "localhost";
}

// Browsers send the cookies of every program on 127.0.0.1, and open connections in advance that they leave idle.
http::Limits limits_of(double timeout_s) {
  const auto timeout = std::chrono::duration_cast<http::Clock::duration>(std::chrono::duration<double>(timeout_s));
  return {.request_bytes = 32 << 10, .request = timeout, .stall = timeout, .answer = timeout, .connections = 8};
}

}  // namespace

struct WatchServer::State {
  LivePage page;
  http::Server server;
  int port = 0;

  State(std::vector<fs::path> folders, double timeout_s) : page(std::move(folders)), server(limits_of(timeout_s)) {}

  void answer(const httplib::Request& request, httplib::Response& response, std::string Page::*part) {
    const auto now = page.current();
    const auto tag = '"' + now->tag + '"';
    response.set_header("ETag", tag);
    if (request.get_header_value("If-None-Match") == tag) response.status = 304;
    else response.set_content((*now).*part, "text/html; charset=utf-8");
  }

  void configure() {
    server.set_payload_max_length(0);
    server.set_default_headers({{"Cache-Control", "no-store"},
                                {"Cross-Origin-Resource-Policy", "same-origin"},
                                {"X-Content-Type-Options", "nosniff"},
                                {"X-Frame-Options", "DENY"}});
    server.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
      if (names_this_machine(request.get_header_value("Host"))) return httplib::Server::HandlerResponse::Unhandled;
      response.status = 403;
      response.set_content("ingot report --watch answers at http://127.0.0.1 and http://localhost alone\n", "text/plain");
      return httplib::Server::HandlerResponse::Handled;
    });
    server.Get("/", [this](const httplib::Request& request, httplib::Response& response) { answer(request, response, &Page::whole); });
    server.Get("/main", [this](const httplib::Request& request, httplib::Response& response) { answer(request, response, &Page::main); });
  }
};

WatchServer::WatchServer(std::vector<fs::path> folders, int port, double timeout_s)
    : state_(std::make_unique<State>(std::move(folders), timeout_s)) {
  state_->configure();
  state_->port = state_->server.start("127.0.0.1", port);
  if (state_->port <= 0)
    throw base::UsageError("cannot listen at 127.0.0.1:{}: the port is taken or needs root; --port takes another one, and 0 for any", port);
}

WatchServer::~WatchServer() = default;

int WatchServer::port() const { return state_->port; }

bool WatchServer::is_running() const { return state_->server.is_up(); }

}  // namespace ingot::report
