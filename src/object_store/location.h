// Where objects are: s3://bucket/prefix as a user writes it, and the URL under which a store answers for it. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace ingot::object_store {

struct Location {
  std::string bucket;
  std::string prefix;  // without slashes at its ends; may be empty

  /// The object's key: prefix and name with a slash between.
  std::string key(std::string_view name) const;
  std::string to_string() const;  // "s3://bucket/prefix"
};

bool is_object_url(std::string_view text);  // begins with "s3://"

/// Throws base::ConfigError.
Location parse_location(std::string_view url);

struct Endpoint {
  std::string scheme;     // "https" or "http"
  std::string host;       // lower case, with the port unless it is the scheme's own
  std::string base_path;  // percent-encoded; begins with a slash unless empty; holds the bucket with path-style addresses

  /// Percent-encoded, as it is sent and signed; "/" at least. An empty key is the bucket itself.
  std::string path_of(std::string_view key) const;
};

enum class Addressing { automatic, path, virtual_host };

/// `endpoint_url` is http(s)://host[:port][/path], or "" for AWS, which needs a region. Automatic: https://host/bucket/key for an
/// endpoint that was given and for buckets with a dot (no certificate covers these as a host), else https://bucket.host/key.
/// Throws base::ConfigError.
Endpoint resolve_endpoint(const std::string& endpoint_url, const std::string& region, const std::string& bucket,
                          Addressing addressing = Addressing::automatic);

}  // namespace ingot::object_store
