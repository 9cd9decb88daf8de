// Small text helpers that several layers need: the nearest known name, sizes and times for people, and reading numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::base {

/// The candidate with the smallest edit distance to `name`, or "" when none is within a third of its length (at least 2).
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

/// "; did you mean 'x'?" or "" - ready to be appended to a message.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

std::string join(const std::vector<std::string>& parts, std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);

/// "1.50 GiB" (2^30), "12.0 MiB", "312 B".
std::string format_bytes(int64_t bytes);
/// "12.3 M", "8.84 G" (10^3 steps) for parameters, tokens and FLOPs.
std::string format_count(double count);
/// "3.2 s", "4 min 05 s", "2 h 03 min", "1 d 04 h".
std::string format_duration(double seconds);

/// "2026-11-23T04:05:06Z" (ISO 8601).
std::string now_utc();

/// Whole-string number with an optional K, M, G or T (powers of 1024 with an i or B: "4KiB"; of 1000 without). Nothing if it is not one.
std::optional<int64_t> parse_integer(std::string_view text);
std::optional<double> parse_number(std::string_view text);

}  // namespace ingot::base
