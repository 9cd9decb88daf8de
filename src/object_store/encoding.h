// The byte transformations of the S3 protocol: percent-encoding as Signature Version 4 wants it, hexadecimal, base64 and digests
// (OpenSSL's libcrypto). Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ingot::object_store {

/// Names and values, in order: query parameters or headers.
using Pairs = std::vector<std::pair<std::string, std::string>>;

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

/// Every byte but A-Z a-z 0-9 - . _ ~ becomes %XX; slashes stay if they are to be kept.
std::string percent_encode(std::string_view text, bool keep_slashes);
/// The reverse; "+" is a space, as in what S3 answers to encoding-type=url. What is no valid escape stays as it is.
std::string percent_decode(std::string_view text);
/// Parameters sorted by their encoded names and values: both the canonical query of a signature and what is sent.
std::string encode_query(const Pairs& query);

std::string hex(std::string_view bytes);
std::string base64(std::string_view bytes);

/// Raw digests: 32, 32 and 16 bytes.
std::string sha256(std::span<const std::byte> data);
std::string hmac_sha256(std::string_view key, std::string_view data);
std::string md5(std::span<const std::byte> data);

/// Printable text of at most 300 bytes, for messages: what comes from outside may hold anything.
std::string printable(std::string_view text);

/// A whole non-negative decimal number, or -1.
int64_t parse_count(std::string_view text);

std::string lower_case(std::string_view text);
/// Without the quotes around it, as ETags have them.
std::string unquoted(std::string text);

}  // namespace ingot::object_store
