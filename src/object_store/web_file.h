// A file of a web server (http:// or https://), read by ranges, without an account. Any thread may read.
//
// What a server fails at (no answer, a broken or a wrong one, 429, 5xx) is tried again with growing, random pauses. A file that changes
// while it is read, by its size or its ETag, is an error. Redirects are followed when it is opened, and once more when the place that they
// named refuses a range: links of content networks expire.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/error.h"
#include "checkpoint/storage/storage.h"
#include "object_store/http.h"

namespace ingot::object_store {

struct WebOptions {
  int attempts = 8;         // of each range
  double deadline_s = 300;  // of each range with all its attempts
  double connect_s = 10, stall_s = 20;
  double first_pause_s = 0.2, longest_pause_s = 20;
};

bool is_web_url(std::string_view text);  // begins with "http://" or "https://"

/// The server has no such file, or none for us, or answers with a page in its place.
class NoWebFile : public base::FileError {
 public:
  using base::FileError::FileError;
};

class WebFile : public checkpoint::Source {
 public:
  /// Asks for the first byte. Throws NoWebFile, and FileError for what is refused or comes from a server that does not give ranges.
  explicit WebFile(std::string url, const WebOptions& options = {});

  int64_t size_bytes() const override { return size_bytes_; }
  std::string version() const override { return etag_.empty() ? modified_ : etag_; }
  void read_at(int64_t offset, void* destination, int64_t size_bytes) const override;

 private:
  HttpAnswer range(const std::string& url, int64_t offset, int64_t size_bytes, void* destination,
                   std::chrono::steady_clock::time_point deadline) const;
  std::string redirected(const std::string& from, const HttpAnswer& answer) const;

  std::string url_;
  WebOptions options_;
  std::shared_ptr<Http> http_;
  mutable std::mutex mutex_;   // guards what follows
  mutable std::string place_;  // where redirects led
  int64_t size_bytes_ = 0;
  std::string etag_, modified_;
};

}  // namespace ingot::object_store
