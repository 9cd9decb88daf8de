#include "object_store/client.h"

#include <algorithm>
#include <random>

#include "base/log.h"
#include "object_store/advice.h"
#include "object_store/requests.h"

namespace ingot::object_store {
namespace {

constexpr size_t kLongestKey = 1024;
constexpr int64_t kLargestPut = int64_t{5} << 30;
constexpr int64_t kListingLimitBytes = int64_t{32} << 20;  // 1000 keys of 1024 bytes, each escaped threefold, take some 4 MiB
constexpr size_t kBatchKeys = 1000;
constexpr size_t kMostKeys = 10'000'000;
constexpr int kMostEmptyPages = 100;
constexpr const char* kMark = "x-amz-meta-ingot-mark";  // tells whose object is there after an answer was lost

void check_key(const std::string& key) {
  if (key.empty() || key.size() > kLongestKey)
    throw ObjectStoreError(Failure::refused,
                           fmt::format("an object's key has 1 to {} bytes, not {}: '{}'", kLongestKey, key.size(), printable(key)));
}

std::string random_mark() {
  std::random_device device;
  std::string mark;
  for (int i = 0; i < 4; ++i) mark += fmt::format("{:08x}", device());
  return mark;
}

// "bytes 0-99/1234"; total_bytes is -1 for "*".
struct ContentRange {
  int64_t first = -1, last = -1, total_bytes = -1;
};
ContentRange parse_content_range(std::string_view text) {
  if (!text.starts_with("bytes ")) return {};
  text.remove_prefix(6);
  const size_t dash = text.find('-'), slash = text.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || dash > slash) return {};
  return {parse_count(text.substr(0, dash)), parse_count(text.substr(dash + 1, slash - dash - 1)), parse_count(text.substr(slash + 1))};
}

void check_etag(const HttpAnswer& answer) {
  if (answer.header("etag").empty()) throw BrokenAnswer("the answer has no ETag");
}

// Of one page of what begins with `prefix`; `kind`: of what.
Request listing(const char* verb, const std::pair<std::string, std::string>& kind, const std::string& prefix) {
  return {.verb = verb,
          .method = "GET",
          .key = "",
          .prefix = prefix,
          .query = {kind, {"prefix", prefix}, {"encoding-type", "url"}},
          .body_limit_bytes = kListingLimitBytes};
}

void check_begins_with(const std::string& name, const std::string& prefix) {
  if (!name.starts_with(prefix))
    throw BrokenAnswer(fmt::format("the store lists '{}' when asked for what begins with '{}'", printable(name), printable(prefix)));
}

}  // namespace

Client::Client(ClientOptions options) : requests_(std::make_unique<Requests>(std::move(options))) {}
Client::~Client() = default;

const ClientOptions& Client::options() const { return requests_->options(); }
Counters Client::counters() const { return requests_->counters(); }

std::string Client::put(const std::string& key, std::span<const std::byte> content, const PutOptions& options) const {
  check_key(key);
  if (static_cast<int64_t>(content.size()) > kLargestPut)
    throw ObjectStoreError(Failure::refused,
                           fmt::format("cannot put {} in one request: it has {} bytes, more than 5 GiB; use a multipart upload",
                                       requests_->name_of(key), content.size()));
  const bool conditional = options.only_if_absent || !options.only_if_etag.empty();
  Request request{.verb = "put", .method = "PUT", .key = key, .body = content, .digest = true, .deadline_s = options.deadline_s};
  request.check = check_etag;
  const std::string mark = conditional ? random_mark() : "";
  if (conditional) request.headers.emplace_back(kMark, mark);
  if (options.only_if_absent) request.headers.emplace_back("if-none-match", "*");
  if (!options.only_if_etag.empty()) {
    request.headers.emplace_back("if-match", "\"" + options.only_if_etag + "\"");
    request.unmet = Failure::changed;
  }
  try {
    return unquoted(requests_->perform(request).answer.header("etag"));
  } catch (const UncertainError&) {
    if (mark_of(key) != mark) throw;
    return head(key).etag;
  }
}

std::optional<ObjectInfo> Client::find(const std::string& key) const {
  check_key(key);
  Request request{.verb = "look at", .method = "HEAD", .key = key, .may_be_absent = true};
  request.check = [](const HttpAnswer& answer) {
    if (parse_count(answer.header("content-length")) < 0) throw BrokenAnswer("the answer does not say how large the object is");
  };
  const HttpAnswer answer = requests_->perform(request).answer;
  if (answer.status == 404) return std::nullopt;
  return ObjectInfo{key, parse_count(answer.header("content-length")), unquoted(answer.header("etag")),
                    parse_time(answer.header("last-modified"))};
}

ObjectInfo Client::head(const std::string& key) const {
  auto info = find(key);
  if (!info)
    throw ObjectStoreError(Failure::no_such_key, fmt::format("{} does not exist (HTTP 404), or its bucket does not{}",
                                                             requests_->name_of(key), advice_for(Failure::no_such_key)));
  return *info;
}

std::string Client::mark_of(const std::string& key) const {
  return requests_->perform({.verb = "look at", .method = "HEAD", .key = key, .may_be_absent = true}).answer.header(kMark);
}

void Client::get_range(const std::string& key, int64_t offset, std::span<std::byte> destination, const std::string& etag,
                       std::stop_token stop) const {
  check_key(key);
  if (destination.empty()) return;
  const auto size_bytes = static_cast<int64_t>(destination.size());
  const int64_t last = offset + size_bytes - 1;
  Request request{
      .verb = "read", .method = "GET", .key = key, .destination = destination, .unmet = Failure::changed, .stop = std::move(stop)};
  request.headers.emplace_back("range", fmt::format("bytes={}-{}", offset, last));
  if (!etag.empty()) request.headers.emplace_back("if-match", "\"" + etag + "\"");
  request.wanted = [=](const HttpAnswer& answer) {
    if (answer.status == 200) return offset == 0 && parse_count(answer.header("content-length")) == size_bytes;
    const ContentRange range = parse_content_range(answer.header("content-range"));
    return answer.status == 206 && range.first == offset && range.last == last;
  };
  request.check = [&](const HttpAnswer& answer) {
    const ContentRange range = parse_content_range(answer.header("content-range"));
    if (answer.status == 206 && range.total_bytes >= 0 && range.total_bytes <= last)
      throw ObjectStoreError(Failure::refused,
                             fmt::format("{} has only {} bytes, but bytes {} to {} were wanted; it was truncated or is another object",
                                         requests_->name_of(key), range.total_bytes, offset, last));
    const std::string found = unquoted(answer.header("etag"));
    if (!etag.empty() && !found.empty() && found != etag)
      throw ObjectStoreError(Failure::changed, fmt::format("{} has the ETag {} instead of {}{}", requests_->name_of(key), printable(found),
                                                           printable(etag), advice_for(Failure::changed)));
    if (!request.wanted(answer))
      throw BrokenAnswer(
          fmt::format("bytes {} to {} were asked for, but the answer is '{}'", offset, last, printable(answer.header("content-range"))));
    if (answer.received_bytes != size_bytes) throw BrokenAnswer(fmt::format("{} of {} bytes came", answer.received_bytes, size_bytes));
  };
  requests_->perform(request);
}

std::string Client::get(const std::string& key, int64_t limit_bytes) const {
  const ObjectInfo info = head(key);
  if (info.size_bytes > limit_bytes)
    throw ObjectStoreError(Failure::refused, fmt::format("{} has {} bytes, more than the {} that are read at once", requests_->name_of(key),
                                                         info.size_bytes, limit_bytes));
  std::string content(static_cast<size_t>(info.size_bytes), '\0');
  read(key, 0, std::as_writable_bytes(std::span(content)), info.etag);
  return content;
}

Listing Client::list(const std::string& prefix, const std::string& delimiter) const {
  Listing all;
  std::string token;
  for (int empty_pages = 0;;) {
    ListAnswer page;
    auto request = listing("list", {"list-type", "2"}, prefix);
    if (!delimiter.empty()) request.query.emplace_back("delimiter", delimiter);
    if (!token.empty()) request.query.emplace_back("continuation-token", token);
    request.check = [&](const HttpAnswer& answer) {
      page = parse_list(answer.body);
      for (const auto& object : page.objects) check_begins_with(object.key, prefix);
      for (const auto& folder : page.folders) check_begins_with(folder, prefix);
      if (!token.empty() && page.next_token == token) throw BrokenAnswer("the store gives the same page of the listing again");
    };
    requests_->perform(request);
    const bool empty = page.objects.empty() && page.folders.empty();
    std::move(page.objects.begin(), page.objects.end(), std::back_inserter(all.objects));
    std::move(page.folders.begin(), page.folders.end(), std::back_inserter(all.folders));
    token = std::move(page.next_token);
    if (token.empty()) return all;
    empty_pages = empty ? empty_pages + 1 : 0;
    if (empty_pages > kMostEmptyPages || all.objects.size() + all.folders.size() > kMostKeys)
      throw ObjectStoreError(Failure::broken_answer,
                             fmt::format("cannot list {}: the listing does not end after {} objects; use a narrower prefix",
                                         requests_->name_of(prefix), all.objects.size()));
  }
}

void Client::remove(const std::string& key) const {
  check_key(key);
  requests_->perform({.verb = "remove", .method = "DELETE", .key = key, .may_be_absent = true});
}

void Client::remove_if(const std::string& key, const std::string& etag, double deadline_s) const {
  check_key(key);
  Request request{
      .verb = "remove", .method = "DELETE", .key = key, .may_be_absent = true, .unmet = Failure::changed, .deadline_s = deadline_s};
  request.headers.emplace_back("if-match", "\"" + etag + "\"");
  requests_->perform(request);
}

void Client::remove(const std::vector<std::string>& keys) const {
  for (const auto& key : keys) check_key(key);
  for (size_t begin = 0; begin < keys.size(); begin += kBatchKeys) {
    const std::vector<std::string> batch(keys.begin() + static_cast<ptrdiff_t>(begin),
                                         keys.begin() + static_cast<ptrdiff_t>(std::min(begin + kBatchKeys, keys.size())));
    const std::string body = encode_delete(batch);
    std::vector<DeleteFailure> failures;
    Request request{.verb = "remove objects from", .method = "POST", .key = "", .query = {{"delete", ""}}, .body = bytes_of(body)};
    request.headers.emplace_back("content-type", "application/xml");
    request.md5 = true;
    request.body_limit_bytes = kListingLimitBytes;
    request.check = [&](const HttpAnswer& answer) { failures = parse_deleted(answer.body); };
    requests_->perform(request);
    for (const auto& failure : failures) {
      if (failure.code == "NoSuchKey") continue;
      const bool ours = std::find(batch.begin(), batch.end(), failure.key) != batch.end();
      if (ours && is_passing(0, failure.code)) {
        remove(failure.key);
      } else {
        const Failure kind = failure_of(0, failure.code);
        throw ObjectStoreError(kind, fmt::format("cannot remove {}: {}: {}{}", requests_->name_of(failure.key), failure.code,
                                                 failure.message, advice_for(kind)));
      }
    }
  }
}

int64_t Client::remove_prefix(const std::string& prefix) const {
  if (prefix.empty())
    throw ObjectStoreError(Failure::refused, fmt::format("all of bucket '{}' would be removed; name a prefix", options().bucket));
  std::vector<std::string> keys;
  for (auto& object : list(prefix).objects) keys.push_back(std::move(object.key));
  remove(keys);
  return static_cast<int64_t>(keys.size());
}

Upload Client::create_upload(const std::string& key) const {
  check_key(key);
  Upload upload{key, {}, random_mark()};
  Request request{.verb = "begin to write", .method = "POST", .key = key, .query = {{"uploads", ""}}, .headers = {{kMark, upload.mark}}};
  if (options().checksum == Checksum::sha256) request.headers.emplace_back("x-amz-checksum-algorithm", "SHA256");
  request.check = [&](const HttpAnswer& answer) { upload.id = parse_upload_id(answer.body); };
  requests_->perform(request);
  return upload;
}

Part Client::upload_part(const Upload& upload, int number, std::span<const std::byte> content, std::stop_token stop) const {
  Request request{.verb = "write a part of",
                  .method = "PUT",
                  .key = upload.key,
                  .query = {{"partNumber", std::to_string(number)}, {"uploadId", upload.id}},
                  .body = content,
                  .digest = true,
                  .stop = std::move(stop)};
  request.check = check_etag;
  const Outcome outcome = requests_->perform(request);
  return {number, outcome.answer.header("etag"), outcome.sha256};
}

std::string Client::complete_upload(const Upload& upload, const std::vector<Part>& parts) const {
  const std::string body = encode_complete(parts);
  std::string etag;
  Request request{.verb = "complete", .method = "POST", .key = upload.key, .query = {{"uploadId", upload.id}}, .body = bytes_of(body)};
  request.headers.emplace_back("content-type", "application/xml");
  request.patient = true;  // the store may take minutes, sending a space now and then
  request.check = [&](const HttpAnswer& answer) { etag = parse_completed(answer.body); };
  try {
    requests_->perform(request);
    return etag;
  } catch (const UncertainError&) {
    if (mark_of(upload.key) != upload.mark) throw;
    return head(upload.key).etag;
  }
}

void Client::abort_upload(const Upload& upload) const {
  requests_->perform(
      {.verb = "abort the upload of", .method = "DELETE", .key = upload.key, .query = {{"uploadId", upload.id}}, .may_be_absent = true});
}

std::vector<PendingUpload> Client::pending_uploads(const std::string& prefix) const {
  std::vector<PendingUpload> all;
  std::string key_marker, id_marker;
  while (true) {
    UploadsAnswer page;
    auto request = listing("list uploads of", {"uploads", ""}, prefix);
    if (!key_marker.empty()) request.query.insert(request.query.end(), {{"key-marker", key_marker}, {"upload-id-marker", id_marker}});
    request.check = [&](const HttpAnswer& answer) {
      page = parse_uploads(answer.body);
      for (const auto& upload : page.uploads) check_begins_with(upload.key, prefix);
      if (!key_marker.empty() && page.next_key == key_marker && page.next_id == id_marker)
        throw BrokenAnswer("the store gives the same page of the listing again");
    };
    requests_->perform(request);
    std::move(page.uploads.begin(), page.uploads.end(), std::back_inserter(all));
    key_marker = std::move(page.next_key);
    id_marker = std::move(page.next_id);
    if (key_marker.empty()) return all;
    if (all.size() > kMostKeys)
      throw ObjectStoreError(Failure::broken_answer, fmt::format("the list of uploads of {} does not end", requests_->name_of(prefix)));
  }
}

}  // namespace ingot::object_store
