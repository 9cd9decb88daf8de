// Text for HTML and numbers for people. Everything that comes from a file goes through escape().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ingot::report {

/// Safe between tags and inside quoted attributes. Bytes that are not UTF-8 and control characters become U+FFFD.
std::string escape(std::string_view text);

/// At most `limit` bytes of `text`, cut between characters and then marked with an ellipsis.
std::string shortened(std::string_view text, size_t limit);

/// "1,234,567".
std::string grouped(int64_t value);
/// Four significant digits without an exponent where that reads well: "0.0123", "3.215", "12,345", "3.00e-04".
std::string number(double value);
/// "+4.2 %", "−12 %"; "" for NaN.
std::string signed_percent(double fraction);

}  // namespace ingot::report
