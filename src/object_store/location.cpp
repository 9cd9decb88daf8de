#include "object_store/location.h"

#include <algorithm>

#include "base/error.h"
#include "object_store/encoding.h"

namespace ingot::object_store {
namespace {

using base::ConfigError;

constexpr std::string_view kScheme = "s3://";
constexpr size_t kLongestPrefix = 900;  // of the 1024 bytes of a key, so that names fit behind it

bool is_letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

bool is_bucket_name(std::string_view name) {
  const auto fits = [](char c) { return is_letter_or_digit(c) || c == '.' || c == '-' || c == '_'; };
  return name.size() >= 3 && name.size() <= 255 && std::all_of(name.begin(), name.end(), fits) && is_letter_or_digit(name.front()) &&
         is_letter_or_digit(name.back()) && name.find("..") == std::string_view::npos;
}

// A name, an IPv4 address or a bracketed IPv6 address, and perhaps a port.
bool is_host(std::string_view host) {
  size_t name_end = host.find(':');
  if (host.starts_with('[')) {
    const size_t close = host.find(']');
    if (close == std::string_view::npos || close < 3) return false;
    const auto fits = [](char c) { return std::string_view("0123456789abcdefABCDEF:.").find(c) != std::string_view::npos; };
    if (!std::all_of(host.begin() + 1, host.begin() + static_cast<ptrdiff_t>(close), fits)) return false;
    name_end = close + 1 == host.size() ? std::string_view::npos : close + 1;
  } else {
    const std::string_view name = host.substr(0, name_end);
    const auto fits = [](char c) { return is_letter_or_digit(c) || c == '.' || c == '-' || c == '_'; };
    if (name.empty() || !std::all_of(name.begin(), name.end(), fits)) return false;
  }
  if (name_end == std::string_view::npos) return true;
  if (host[name_end] != ':') return false;
  const int64_t port = parse_count(host.substr(name_end + 1));
  return port >= 1 && port <= 65535;
}

struct ParsedUrl {
  std::string scheme, host, path;
};

ParsedUrl parse_endpoint_url(const std::string& url) {
  constexpr const char* kForm = "it must have the form https://host[:port][/path]";
  const size_t colon = url.find("://");
  if (colon == std::string::npos) throw ConfigError("the endpoint '{}' of the object store is no URL; {}", printable(url), kForm);
  ParsedUrl parsed{lower_case(url.substr(0, colon)), {}, {}};
  if (parsed.scheme != "http" && parsed.scheme != "https")
    throw ConfigError("the endpoint '{}' of the object store is neither http nor https; {}", printable(url), kForm);
  const std::string rest = url.substr(colon + 3);
  const size_t slash = std::min(rest.find('/'), rest.size());
  parsed.host = lower_case(rest.substr(0, slash));
  parsed.path = rest.substr(slash);
  while (parsed.path.ends_with('/')) parsed.path.pop_back();
  // What is refused may be a password, so the URL is not quoted.
  if (parsed.host.find('@') != std::string::npos)
    throw ConfigError("the endpoint of the object store holds a user name; put keys into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
  if (!is_host(parsed.host)) throw ConfigError("the endpoint '{}' of the object store has no valid host; {}", printable(url), kForm);
  if (parsed.path.find_first_of("?#%") != std::string::npos)
    throw ConfigError("the endpoint '{}' of the object store has more than a plain path; {}", printable(url), kForm);
  const std::string own_port = parsed.scheme == "https" ? ":443" : ":80";
  if (parsed.host.ends_with(own_port)) parsed.host.resize(parsed.host.size() - own_port.size());
  return parsed;
}

}  // namespace

std::string Location::key(std::string_view name) const { return prefix.empty() ? std::string(name) : prefix + "/" + std::string(name); }
std::string Location::to_string() const { return std::string(kScheme) + bucket + (prefix.empty() ? "" : "/" + prefix); }

bool is_object_url(std::string_view text) { return text.starts_with(kScheme); }

Location parse_location(std::string_view url) {
  if (!is_object_url(url)) throw ConfigError("'{}' does not begin with s3://; write s3://bucket/prefix", printable(url));
  const std::string_view rest = url.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  Location location{std::string(rest.substr(0, slash)), std::string(rest.substr(std::min(slash + 1, rest.size())))};
  while (location.prefix.ends_with('/')) location.prefix.pop_back();
  if (!is_bucket_name(location.bucket))
    throw ConfigError("'{}' is no bucket name in '{}': 3 or more letters, digits, dots and dashes", printable(location.bucket),
                      printable(url));
  if (location.prefix.starts_with('/') || location.prefix.find("//") != std::string::npos)
    throw ConfigError("'{}' has an empty part between two slashes; remove one", printable(url));
  if (location.prefix.size() > kLongestPrefix)
    throw ConfigError("the prefix of '{}' has {} bytes; at most {} leave room for names", printable(url), location.prefix.size(),
                      kLongestPrefix);
  if (std::any_of(location.prefix.begin(), location.prefix.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }))
    throw ConfigError("'{}' contains a control character", printable(url));
  return location;
}

std::string Endpoint::path_of(std::string_view key) const {
  const std::string path = base_path + (key.empty() ? "" : "/" + percent_encode(key, true));
  return path.empty() ? "/" : path;
}

Endpoint resolve_endpoint(const std::string& endpoint_url, const std::string& region, const std::string& bucket, Addressing addressing) {
  if (!is_bucket_name(bucket)) throw ConfigError("'{}' is no bucket name", printable(bucket));
  ParsedUrl url{"https", {}, {}};
  if (endpoint_url.empty()) {
    if (region.empty())
      throw ConfigError("no region for bucket '{}': set AWS_REGION, or AWS_ENDPOINT_URL for a store that is not AWS", bucket);
    url.host = "s3." + lower_case(region) + (region.starts_with("cn-") ? ".amazonaws.com.cn" : ".amazonaws.com");
    if (!is_host(url.host) || url.host.find(':') != std::string::npos) throw ConfigError("'{}' is no region", printable(region));
  } else {
    url = parse_endpoint_url(endpoint_url);
  }
  if (addressing == Addressing::automatic)
    addressing = endpoint_url.empty() && bucket.find('.') == std::string::npos ? Addressing::virtual_host : Addressing::path;
  const std::string path = percent_encode(url.path, true);
  if (addressing == Addressing::virtual_host) return {url.scheme, lower_case(bucket) + "." + url.host, path};
  return {url.scheme, url.host, path + "/" + bucket};
}

}  // namespace ingot::object_store
