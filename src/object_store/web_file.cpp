#include "object_store/web_file.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "object_store/random_pause.h"

namespace ingot::object_store {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostRedirects = 5;

bool is_redirect(int status) { return status == 301 || status == 302 || status == 303 || status == 307 || status == 308; }
bool may_pass(const HttpAnswer& answer) {
  return answer.status == 0 || answer.status == 408 || answer.status == 429 || answer.status >= 500 || !answer.failure.empty();
}

// "bytes 0-9/100"
struct ContentRange {
  int64_t first = 0, last = 0, whole = 0;
};
std::optional<ContentRange> content_range(const std::string& text) {
  ContentRange range;
  char end = 0;
  if (std::sscanf(text.c_str(), "bytes %ld-%ld/%ld%c", &range.first, &range.last, &range.whole, &end) != 3) return std::nullopt;
  if (range.first < 0 || range.last < range.first || range.whole <= range.last) return std::nullopt;
  return range;
}

std::string words_of(const HttpAnswer& answer) {
  if (!answer.failure.empty()) return answer.failure;
  return fmt::format("HTTP {}", answer.status);
}

}  // namespace

bool is_web_url(std::string_view text) { return text.starts_with("https://") || text.starts_with("http://"); }

WebFile::WebFile(std::string url, const WebOptions& options)
    : url_(std::move(url)), options_(options), http_(std::make_shared<Http>(HttpOptions{.connect_s = options.connect_s})), place_(url_) {
  char first = 0;
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.deadline_s));
  int redirects = 0;
  for (int attempt = 0;;) {
    const auto answer = range(place_, 0, 1, &first, until);
    if (is_redirect(answer.status)) {
      if (++redirects > kMostRedirects) throw base::FileError("{}: it is redirected more than {} times", url_, kMostRedirects);
      place_ = redirected(place_, answer);
      continue;
    }
    const auto there = content_range(answer.header("content-range"));
    if (answer.status == 206 && answer.failure.empty() && there && there->first == 0) {
      size_bytes_ = there->whole;
      etag_ = answer.header("etag");
      modified_ = answer.header("last-modified");
      return;
    }
    if (answer.status == 416 && answer.header("content-range") == "bytes */0") return;  // an empty file
    if (answer.status == 200)
      throw NoWebFile("{}: the server does not give ranges of a file: download it first, with curl -O or wget", url_);
    if (answer.status == 403 || answer.status == 404 || answer.status == 410) throw NoWebFile("{}: {}", url_, words_of(answer));
    if (!may_pass(answer) && answer.status != 206) throw base::FileError("{}: {}", url_, words_of(answer));
    if (++attempt >= options_.attempts || Clock::now() >= until || answer.hopeless)
      throw base::FileError("{}: {} (gave up after {} attempts)", url_, words_of(answer), attempt);
    std::this_thread::sleep_for(std::chrono::duration<double>(random_pause_s(attempt, options_.first_pause_s, options_.longest_pause_s)));
  }
}

HttpAnswer WebFile::range(const std::string& url, int64_t offset, int64_t size_bytes, void* destination, Clock::time_point deadline) const {
  HttpRequest request;
  request.method = "GET";
  request.url = url;
  request.headers = {{"range", fmt::format("bytes={}-{}", offset, offset + size_bytes - 1)}, {"accept-encoding", "identity"}};
  request.destination = {static_cast<std::byte*>(destination), static_cast<size_t>(size_bytes)};
  request.wanted = [](const HttpAnswer& answer) { return answer.status == 206; };
  request.deadline = deadline;
  request.stall_s = options_.stall_s;
  return http_->perform(request);
}

std::string WebFile::redirected(const std::string& from, const HttpAnswer& answer) const {
  const auto& location = answer.header("location");
  if (is_web_url(location)) {
    if (from.starts_with("https://") && location.starts_with("http://"))
      throw base::FileError("{}: it is redirected from https to http", url_);
    return location;
  }
  if (!location.starts_with("/") || location.starts_with("//")) throw base::FileError("{}: it is redirected to nowhere", url_);
  return from.substr(0, from.find('/', from.find("://") + 3)) + location;
}

void WebFile::read_at(int64_t offset, void* destination, int64_t size_bytes) const {
  if (size_bytes == 0) return;
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.deadline_s));
  std::string place;
  {
    const std::lock_guard lock(mutex_);
    place = place_;
  }
  std::string what;
  for (int attempt = 0, redirects = 0; attempt < options_.attempts && Clock::now() < until;) {
    const auto answer = range(place, offset, size_bytes, destination, until);
    if (is_redirect(answer.status) && ++redirects <= kMostRedirects) {
      place = redirected(place, answer);
      continue;
    }
    const auto there = content_range(answer.header("content-range"));
    if (answer.status == 206 && answer.failure.empty() && there) {
      const bool has_another_size = there->whole != size_bytes_;
      if (answer.header("etag") != etag_ || (has_another_size && etag_.empty()))
        throw base::FileError("{}: the file was changed while it was read", url_);
      if (!has_another_size && there->first == offset && there->last == offset + size_bytes - 1 && answer.received_bytes == size_bytes) {
        const std::lock_guard lock(mutex_);
        place_ = place;
        return;
      }
    }
    const bool answers_otherwise = answer.failure.empty() && (answer.status == 206 || answer.status == 200);  // it gave ranges before
    what = answers_otherwise ? "it answers with other bytes than were asked for" : words_of(answer);
    if (place != url_ && answer.status >= 400 && answer.status < 500) {
      place = url_;  // the link has expired
    } else if (!may_pass(answer) && !answers_otherwise) {
      break;
    }
    ++attempt;
    std::this_thread::sleep_for(std::chrono::duration<double>(random_pause_s(attempt, options_.first_pause_s, options_.longest_pause_s)));
  }
  throw base::FileError("{}: bytes {} to {} do not come: {}", url_, offset, offset + size_bytes - 1,
                        what.empty() ? "no time is left" : what);
}

}  // namespace ingot::object_store
