// Drives a Client from a command line, for tests/python/object_store_test.py; no part of ingot. Prints one JSON document:
// the result and the client's counters, or the failure and its message (exit status 1; 2 for wrong settings).
//
//   object_store_exercise [--option value]... BUCKET COMMAND [argument]...
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/files.h"
#include "object_store/encoding.h"
#include "object_store/multipart.h"

namespace ingot::object_store {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

const char* variable(const char* name) { return std::getenv(name); }

struct Options {
  ClientOptions client;
  int64_t part_bytes = kSmallestPartBytes;
  int threads = 3;
};

void set_option(Options& options, const std::string& name, const std::string& value) {
  const std::map<std::string, std::function<void()>> known{
      {"--attempts", [&] { options.client.attempts = std::stoi(value); }},
      {"--deadline", [&] { options.client.deadline_s = std::stod(value); }},
      {"--stall", [&] { options.client.stall_s = std::stod(value); }},
      {"--connect", [&] { options.client.connect_s = std::stod(value); }},
      {"--first-pause", [&] { options.client.first_pause_s = std::stod(value); }},
      {"--longest-pause", [&] { options.client.longest_pause_s = std::stod(value); }},
      {"--connections", [&] { options.client.connections = std::stoi(value); }},
      {"--range-bytes", [&] { options.client.range_bytes = std::stoll(value); }},
      {"--sign-payload", [&] { options.client.sign_payload = value == "yes"; }},
      {"--addressing", [&] { options.client.addressing = value == "host" ? Addressing::virtual_host : Addressing::path; }},
      {"--checksum",
       [&] { options.client.checksum = value == "md5"    ? Checksum::md5
                                       : value == "none" ? Checksum::none
                                                         : Checksum::sha256; }},
      {"--part-bytes", [&] { options.part_bytes = std::stoll(value); }},
      {"--threads", [&] { options.threads = std::stoi(value); }}};
  const auto found = known.find(name);
  if (found == known.end()) throw base::UsageError("unknown option {}", name);
  found->second();
}

json described(const ObjectInfo& info) {
  return {{"key", info.key}, {"size", info.size_bytes}, {"etag", info.etag}, {"last_modified", info.last_modified_s}};
}

std::vector<std::byte> bytes(std::string_view text) {
  const auto view = bytes_of(text);
  return {view.begin(), view.end()};
}

// Each of `threads` threads adds every threads-th part, the last ones first.
json multipart(const Client& client, const Options& options, const std::string& key, const std::string& content) {
  MultipartUpload upload(client, key, options.threads);
  const int64_t size_bytes = static_cast<int64_t>(content.size()), parts = (size_bytes + options.part_bytes - 1) / options.part_bytes;
  std::exception_ptr failure;
  std::mutex mutex;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < options.threads; ++t) {
      threads.emplace_back([&, t] {
        try {
          for (int64_t part = parts - 1 - t; part >= 0; part -= options.threads)
            upload.add_part(static_cast<int>(part + 1),
                            bytes(std::string_view(content).substr(static_cast<size_t>(part * options.part_bytes),
                                                                   static_cast<size_t>(options.part_bytes))));
        } catch (...) {
          const std::lock_guard guard(mutex);
          failure = std::current_exception();
        }
      });
    }
  }
  if (failure) std::rethrow_exception(failure);
  return {{"etag", upload.complete()}, {"parts", parts}};
}

// Many threads on one client: each writes, reads and removes objects of its own.
json storm(const Client& client, const Options& options, const std::string& prefix, int rounds) {
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < options.threads; ++t) {
      threads.emplace_back([&, t] {
        try {
          for (int i = 0; i < rounds; ++i) {
            const std::string key = fmt::format("{}{}/{}", prefix, t, i), content = fmt::format("{:>{}}", key, 1000 + 37 * i);
            client.put(key, bytes_of(content));
            if (client.get(key) != content) ++wrong;
            client.remove(key);
            if (client.find(key)) ++wrong;
          }
        } catch (const std::exception& failure) {
          std::fprintf(stderr, "%s\n", failure.what());
          ++wrong;
        }
      });
    }
  }
  return {{"wrong", wrong.load()}};
}

json get(const Client& client, const std::string& key, const std::string& file) {
  const ObjectInfo info = client.head(key);
  std::string content(static_cast<size_t>(info.size_bytes), '\0');
  client.read(key, 0, std::as_writable_bytes(std::span(content)), info.etag);
  base::write_file_atomically(file, content);
  return described(info);
}

json range(const Client& client, const Arguments& a) {
  std::string content(std::stoul(a.at(3)), '\0');
  client.get_range(a.at(1), std::stoll(a.at(2)), std::as_writable_bytes(std::span(content)), a.size() > 5 ? a[5] : "");
  base::write_file_atomically(a.at(4), content);
  return {{"size", content.size()}};
}

json listed(const Listing& listing) {
  json objects = json::array();
  for (const auto& object : listing.objects) objects.push_back(described(object));
  return {{"objects", objects}, {"folders", listing.folders}};
}

json perform(const Client& client, const Options& options, const Arguments& a) {
  const std::string& command = a.at(0);
  if (command == "put")
    return {{"etag", client.put(a.at(1), bytes_of(base::read_file(a.at(2))), {.only_if_absent = a.size() > 3 && a[3] == "if-absent"})}};
  if (command == "get") return get(client, a.at(1), a.at(2));
  if (command == "range") return range(client, a);
  if (command == "multipart") return multipart(client, options, a.at(1), base::read_file(a.at(2)));
  if (command == "storm") return storm(client, options, a.at(1), std::stoi(a.at(2)));
  if (command == "head") return described(client.head(a.at(1)));
  if (command == "find") return {{"found", client.find(a.at(1)).has_value()}};
  if (command == "list") return listed(client.list(a.at(1), a.size() > 2 ? a[2] : ""));
  if (command == "remove") return client.remove(a.at(1)), json::object();
  if (command == "remove-prefix") return {{"removed", client.remove_prefix(a.at(1))}};
  if (command == "begin") return {{"id", client.create_upload(a.at(1)).id}};
  if (command == "abandon") {
    MultipartUpload upload(client, a.at(1));
    upload.add_part(1, bytes(base::read_file(a.at(2))));
    return json::object();
  }
  if (command == "pending") {
    json uploads = json::array();
    for (const auto& upload : client.pending_uploads(a.at(1))) {
      uploads.push_back({{"key", upload.key}, {"id", upload.id}, {"initiated", upload.initiated_s}});
      if (a.size() > 2 && a[2] == "abort") client.abort_upload({upload.key, upload.id, ""});
    }
    return {{"uploads", uploads}};
  }
  throw base::UsageError("unknown command {}", command);
}

int run(Arguments arguments) {
  json document;
  int status = 0;
  try {
    Options options;
    while (!arguments.empty() && arguments[0].starts_with("--")) {
      set_option(options, arguments.at(0), arguments.at(1));
      arguments.erase(arguments.begin(), arguments.begin() + 2);
    }
    options.client.bucket = arguments.at(0);
    options.client.account = load_account(variable);
    options.client.renew = [] { return load_account(variable).credentials; };
    const Client client(options.client);
    try {
      document["result"] = perform(client, options, {arguments.begin() + 1, arguments.end()});
    } catch (const ObjectStoreError& failure) {
      document = {{"failure", name_of(failure.failure())}, {"message", failure.what()}};
      status = 1;
    }
    const Counters counters = client.counters();
    document["counters"] = {{"requests", counters.requests},
                            {"retries", counters.retries},
                            {"connections_opened", counters.connections_opened},
                            {"sent_bytes", counters.sent_bytes},
                            {"received_bytes", counters.received_bytes}};
  } catch (const std::exception& failure) {
    document = {{"failure", "settings"}, {"message", failure.what()}};
    status = 2;
  }
  std::printf("%s\n", document.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
  return status;
}

}  // namespace
}  // namespace ingot::object_store

int main(int argc, char** argv) { return ingot::object_store::run({argv + 1, argv + argc}); }
