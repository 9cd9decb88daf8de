// Signature Version 4 of requests to S3. Pure functions. Source: AWS General Reference, "Create a signed AWS API request", and
// S3 API Reference, "Authenticating Requests: Using the Authorization Header" (paths are encoded once and never normalised).
#pragma once

#include <chrono>
#include <string>

#include "object_store/credentials.h"
#include "object_store/encoding.h"

namespace ingot::object_store {

/// In place of the payload's digest: the signature then does not cover the payload. For https only.
inline constexpr const char* kUnsignedPayload = "UNSIGNED-PAYLOAD";

struct RequestToSign {
  std::string method;          // "GET"
  std::string host;            // as in the Host header, with a port that is not the scheme's own
  std::string path;            // percent-encoded, as it is sent
  Pairs query;                 // not encoded
  Pairs headers;               // names in lower case; all of them are signed
  std::string payload_sha256;  // 64 hexadecimal digits, or kUnsignedPayload
};

/// The headers to send besides `request.headers`: x-amz-date, x-amz-content-sha256, x-amz-security-token, authorization.
Pairs sign(const RequestToSign& request, const Credentials& credentials, const std::string& region,
           std::chrono::system_clock::time_point now);

}  // namespace ingot::object_store
