// The XML of the S3 protocol (S3 API Reference): answers read with pugixml, which expands no entities but the five built-in
// ones, and request bodies. Pure functions. Whatever an answer holds, parsing ends in a value or a BrokenAnswer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ingot::object_store {

/// Not what a store would answer; the client tries again.
class BrokenAnswer : public base::Error {
 public:
  using base::Error::Error;
};

struct ErrorAnswer {
  std::string code;  // "NoSuchKey"; "" when the body is no <Error>
  std::string message;
  std::string region;  // where the bucket is, when that was the mistake
};
/// Never throws: proxies answer errors with anything.
ErrorAnswer parse_error(std::string_view body);

struct ObjectInfo {
  std::string key;
  int64_t size_bytes = 0;
  std::string etag;             // without quotes
  int64_t last_modified_s = 0;  // since 1970; 0 if unknown
};

struct ListAnswer {
  std::vector<ObjectInfo> objects;
  std::vector<std::string> folders;  // common prefixes, each ending with the delimiter
  std::string next_token;            // "" on the last page
};
ListAnswer parse_list(std::string_view body);

struct PendingUpload {
  std::string key, id;
  int64_t initiated_s = 0;  // since 1970; 0 if unknown
};
struct UploadsAnswer {
  std::vector<PendingUpload> uploads;
  std::string next_key, next_id;  // "" on the last page
};
UploadsAnswer parse_uploads(std::string_view body);

/// The id in the answer to CreateMultipartUpload.
std::string parse_upload_id(std::string_view body);
/// The ETag in the answer to CompleteMultipartUpload.
std::string parse_completed(std::string_view body);

struct DeleteFailure {
  std::string key, code, message;
};
/// What the answer to DeleteObjects says could not be deleted.
std::vector<DeleteFailure> parse_deleted(std::string_view body);

struct Part {
  int number = 0;      // 1..10000
  std::string etag;    // as the store gave it, quotes included
  std::string sha256;  // base64; "" without checksums
};
std::string encode_complete(const std::vector<Part>& parts);
std::string encode_delete(const std::vector<std::string>& keys);

/// Seconds since 1970 of "2026-11-22T04:49:11.000Z" or of "Sun, 22 Nov 2026 04:49:11 GMT"; 0 for anything else.
int64_t parse_time(std::string_view text);

}  // namespace ingot::object_store
