// Base64 (RFC 4648, section 4), as tokenizer files carry bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ingot::data {

/// The bytes, or nothing where `text` is not base64 with its padding.
std::optional<std::string> bytes_of_base64(std::string_view text);

}  // namespace ingot::data
