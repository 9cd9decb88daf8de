// An HTTP server in this process, and a bucket in its memory that counts requests, for tests. Signatures are not looked at:
// tests/python/object_store_test.py does that.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "object_store/client.h"
#include "object_store/encoding.h"

namespace ingot::object_store {

struct Asked {
  std::string method, path;                           // percent-encoded
  std::map<std::string, std::string> query, headers;  // decoded; names of headers in lower case
  std::string body;

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
  bool has(const std::string& parameter) const { return query.contains(parameter); }
};

struct Answer {
  int status = 200;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers{};
  bool closes = false;  // the connection ends without an answer
};

class TestServer {
 public:
  using Serve = std::function<Answer(const Asked&)>;
  explicit TestServer(Serve serve) : serve_(std::move(serve)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener_, 64) != 0)
      throw std::runtime_error("listen");
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    url_ = "http://127.0.0.1:" + std::to_string(::ntohs(address.sin_port));
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~TestServer() {
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    ::close(listener_);
    {
      const std::lock_guard guard(mutex_);
      for (auto& [socket, thread] : connections_) ::shutdown(socket, SHUT_RDWR);
    }
    for (auto& [socket, thread] : connections_) {
      thread.join();
      ::close(socket);
    }
  }
  const std::string& url() const { return url_; }

 private:
  void accept_all() {
    for (int socket; (socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
      const int on = 1;
      ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      const std::lock_guard guard(mutex_);
      connections_.emplace_back(socket, std::thread([this, socket] { converse(socket); }));
    }
  }
  void converse(int socket) {
    std::string data;
    const auto more = [&] {
      char part[1 << 16];
      const ssize_t got = ::recv(socket, part, sizeof part, 0);
      if (got > 0) data.append(part, static_cast<size_t>(got));
      return got > 0;
    };
    while (true) {
      size_t end;
      while ((end = data.find("\r\n\r\n")) == std::string::npos)
        if (!more()) return;
      Asked asked = parse(data.substr(0, end + 2));
      data.erase(0, end + 4);
      const auto body_bytes = static_cast<size_t>(std::max<int64_t>(0, parse_count(asked.header("content-length"))));
      if (asked.header("expect") == "100-continue") send_all(socket, "HTTP/1.1 100 Continue\r\n\r\n");
      while (data.size() < body_bytes)
        if (!more()) return;
      asked.body = data.substr(0, body_bytes);
      data.erase(0, body_bytes);
      const Answer answer = serve_(asked);
      if (answer.closes) {
        ::shutdown(socket, SHUT_RDWR);
        return;
      }
      std::string head = "HTTP/1.1 " + std::to_string(answer.status) + " X\r\n";
      bool has_length = answer.status == 204;
      for (const auto& [name, value] : answer.headers) {
        head += name + ": " + value + "\r\n";
        has_length = has_length || name == "Content-Length";
      }
      if (!has_length) head += "Content-Length: " + std::to_string(answer.body.size()) + "\r\n";
      if (!send_all(socket, head + "\r\n")) return;
      if (asked.method != "HEAD" && !send_all(socket, answer.body)) return;
    }
  }
  static bool send_all(int socket, const std::string& text) {
    for (size_t done = 0; done < text.size();) {
      const ssize_t sent = ::send(socket, text.data() + done, text.size() - done, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      done += static_cast<size_t>(sent);
    }
    return true;
  }
  static Asked parse(const std::string& head) {
    Asked asked;
    const size_t space = head.find(' '), second = head.find(' ', space + 1);
    asked.method = head.substr(0, space);
    const auto target = head.substr(space + 1, second - space - 1);
    const size_t mark = std::min(target.find('?'), target.size());
    asked.path = target.substr(0, mark);
    for (size_t at = mark + 1; at < target.size();) {
      const size_t next = std::min(target.find('&', at), target.size());
      const auto parameter = target.substr(at, next - at);
      const size_t equals = std::min(parameter.find('='), parameter.size());
      asked.query[percent_decode(parameter.substr(0, equals))] = percent_decode(parameter.substr(std::min(equals + 1, parameter.size())));
      at = next + 1;
    }
    for (size_t at = head.find("\r\n") + 2; at < head.size();) {
      const size_t next = head.find("\r\n", at), colon = head.find(':', at);
      if (colon < next) {
        size_t value = colon + 1;
        while (head[value] == ' ') ++value;
        asked.headers[lower_case(head.substr(at, colon - at))] = head.substr(value, next - value);
      }
      at = next + 2;
    }
    return asked;
  }

  Serve serve_;
  int listener_;
  std::string url_;
  std::mutex mutex_;
  std::list<std::pair<int, std::thread>> connections_;
  std::thread acceptor_;
};

inline std::string http_time(std::time_t when) {
  std::tm parts{};
  ::gmtime_r(&when, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return text;
}

inline std::string iso_time(std::time_t when) {
  std::tm parts{};
  ::gmtime_r(&when, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

/// The bucket "bucket", path-style. `before` sees every request first and may answer it, or wait; it runs on the connection's thread.
class TestBucket {
 public:
  struct Object {
    std::string content, etag, mark;
    std::time_t modified;
  };
  using Before = std::function<std::optional<Answer>(const Asked&)>;

  TestBucket() : server_([this](const Asked& asked) { return serve(asked); }) {}
  const std::string& url() const { return server_.url(); }

  void set_before(Before before) {
    const std::lock_guard guard(mutex_);
    before_ = std::move(before);
  }
  /// "GET key" and so on, in the order they came; ranges, listings and uploads are told apart. Empties the list.
  std::vector<std::string> take_log() {
    const std::lock_guard guard(mutex_);
    return std::exchange(log_, {});
  }
  std::set<std::string> keys() const {
    const std::lock_guard guard(mutex_);
    std::set<std::string> keys;
    for (const auto& [key, object] : objects_) keys.insert(key);
    return keys;
  }
  size_t uploads() const {
    const std::lock_guard guard(mutex_);
    return uploads_.size();
  }
  std::map<std::string, Object> objects() const {
    const std::lock_guard guard(mutex_);
    return objects_;
  }
  void put(const std::string& key, std::string content, const std::string& mark = "") {
    const std::lock_guard guard(mutex_);
    store(key, std::move(content), mark);
  }
  void clear() {
    const std::lock_guard guard(mutex_);
    objects_.clear();
    uploads_.clear();
    log_.clear();
  }
  /// From now on everything is so much older.
  void grow_older(std::time_t by_s) {
    const std::lock_guard guard(mutex_);
    for (auto& [key, object] : objects_) object.modified -= by_s;
    for (auto& [id, upload] : uploads_) upload.begun -= by_s;
  }
  std::atomic<bool> knows_conditions = true;  // else they are not looked at

  ClientOptions options() const {
    ClientOptions options;
    options.bucket = "bucket";
    options.account.credentials = {"id", "secret", "", "the test"};
    options.account.region = "r";
    options.account.endpoint_url = url();
    options.first_pause_s = 0.001;
    options.longest_pause_s = 0.01;
    options.attempts = 4;
    return options;
  }

 private:
  struct Pending {
    std::string key, mark;
    std::map<int64_t, std::string> parts;
    std::time_t begun;
  };

  static Answer error(int status, const std::string& code) { return {status, "<Error><Code>" + code + "</Code></Error>"}; }
  void store(const std::string& key, std::string content, const std::string& mark) {
    objects_[key] = {std::move(content), fmt::format("etag-{}", ++writes_), mark, std::time(nullptr)};
  }

  Answer serve(const Asked& asked) {
    Before before;
    {
      const std::lock_guard guard(mutex_);
      before = before_;
    }
    if (before)
      if (auto answer = before(asked)) return *answer;
    const std::lock_guard guard(mutex_);
    const std::string root = "/bucket";
    const std::string key = asked.path.size() > root.size() ? percent_decode(asked.path.substr(root.size() + 1)) : "";
    const char* kind = asked.has("list-type")    ? "LIST "
                       : asked.has("uploads")    ? "UPLOADS "
                       : asked.has("partNumber") ? "PART "
                       : asked.has("delete")     ? "BATCH "
                                                 : "";
    log_.push_back(asked.method + " " + kind + (key.empty() && asked.has("prefix") ? asked.query.at("prefix") : key));
    if (key.empty()) return serve_bucket(asked);
    if (asked.has("uploads") || asked.has("uploadId")) return serve_upload(asked, key);
    const auto known = objects_.find(key);
    const bool is_there = known != objects_.end();
    if (knows_conditions && !asked.header("if-match").empty()) {
      if (!is_there) return error(404, "NoSuchKey");
      if (asked.header("if-match") != "\"" + known->second.etag + "\"") return error(412, "PreconditionFailed");
    }
    if (asked.method == "PUT") {
      if (knows_conditions && asked.header("if-none-match") == "*" && is_there) return error(412, "PreconditionFailed");
      store(key, asked.body, asked.header("x-amz-meta-ingot-mark"));
      return {200, "", {{"ETag", "\"" + objects_[key].etag + "\""}}};
    }
    if (asked.method == "DELETE") {
      objects_.erase(key);
      return {204, ""};
    }
    if (!is_there) return error(404, "NoSuchKey");
    const auto& object = known->second;
    Answer answer{
        200,
        "",
        {{"ETag", "\"" + object.etag + "\""}, {"Last-Modified", http_time(object.modified)}, {"x-amz-meta-ingot-mark", object.mark}}};
    if (const auto range = asked.header("range"); !range.empty() && asked.method == "GET") {
      const auto dash = range.find('-');
      const auto first = static_cast<size_t>(parse_count(range.substr(6, dash - 6)));
      if (first >= object.content.size()) return error(416, "InvalidRange");
      const auto last = std::min(static_cast<size_t>(parse_count(range.substr(dash + 1))), object.content.size() - 1);
      answer.status = 206;
      answer.body = object.content.substr(first, last - first + 1);
      answer.headers.emplace_back("Content-Range", fmt::format("bytes {}-{}/{}", first, last, object.content.size()));
    } else {
      answer.body = asked.method == "HEAD" ? "" : object.content;
      answer.headers.emplace_back("Content-Length", std::to_string(object.content.size()));
    }
    return answer;
  }

  Answer serve_upload(const Asked& asked, const std::string& key) {
    if (asked.has("uploads")) {
      const auto id = "id-" + std::to_string(++writes_);
      uploads_[id] = {key, asked.header("x-amz-meta-ingot-mark"), {}, std::time(nullptr)};
      return {200, "<InitiateMultipartUploadResult><UploadId>" + id + "</UploadId></InitiateMultipartUploadResult>"};
    }
    const auto known = uploads_.find(asked.query.at("uploadId"));
    if (known == uploads_.end()) return error(404, "NoSuchUpload");
    if (asked.method == "PUT") {
      known->second.parts[parse_count(asked.query.at("partNumber"))] = asked.body;
      return {200, "", {{"ETag", "\"part\""}}};
    }
    const auto upload = std::move(known->second);
    uploads_.erase(known);
    if (asked.method == "DELETE") return {204, ""};
    std::string content;
    for (const auto& [number, part] : upload.parts) content += part;
    store(key, content, upload.mark);
    return {200, "<CompleteMultipartUploadResult><ETag>" + objects_[key].etag + "</ETag></CompleteMultipartUploadResult>"};
  }

  Answer serve_bucket(const Asked& asked) {
    if (asked.has("delete")) {
      for (size_t at = 0; (at = asked.body.find("<Key>", at)) != std::string::npos; ++at)
        objects_.erase(asked.body.substr(at + 5, asked.body.find("</Key>", at) - at - 5));
      return {200, "<DeleteResult></DeleteResult>"};
    }
    const auto prefix = asked.query.at("prefix");
    std::string body;
    if (asked.has("uploads")) {
      for (const auto& [id, upload] : uploads_)
        if (upload.key.starts_with(prefix))
          body += fmt::format("<Upload><Key>{}</Key><UploadId>{}</UploadId><Initiated>{}</Initiated></Upload>", upload.key, id,
                              iso_time(upload.begun));
      return {200, "<ListMultipartUploadsResult>" + body + "</ListMultipartUploadsResult>"};
    }
    std::set<std::string> folders;
    for (const auto& [key, object] : objects_) {
      if (!key.starts_with(prefix)) continue;
      const auto slash = key.find('/', prefix.size());
      if (asked.has("delimiter") && slash != std::string::npos) {
        folders.insert(key.substr(0, slash + 1));
        continue;
      }
      body += fmt::format("<Contents><Key>{}</Key><Size>{}</Size><ETag>{}</ETag><LastModified>{}</LastModified></Contents>", key,
                          object.content.size(), object.etag, iso_time(object.modified));
    }
    for (const auto& folder : folders) body += "<CommonPrefixes><Prefix>" + folder + "</Prefix></CommonPrefixes>";
    return {200, "<ListBucketResult><IsTruncated>false</IsTruncated>" + body + "</ListBucketResult>"};
  }

  mutable std::mutex mutex_;  // guards what follows
  Before before_;
  std::vector<std::string> log_;
  std::map<std::string, Object> objects_;
  std::map<std::string, Pending> uploads_;
  int64_t writes_ = 0;
  TestServer server_;
};

}  // namespace ingot::object_store
