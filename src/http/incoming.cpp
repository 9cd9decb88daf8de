#include "http/incoming.h"

#include <strings.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

namespace ingot::http {
namespace {

constexpr size_t kMostHeadBytes = 64 << 10, kMostLineBytes = 1 << 10;

bool are_same(std::string_view a, std::string_view b) { return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace

Incoming::State Incoming::add(std::string_view more) {
  bytes_ += more;
  if (head_bytes_ == 0) {
    const auto end = bytes_.find("\n\r\n", std::max<size_t>(looked_at_, 2) - 2);
    looked_at_ = bytes_.size();
    const size_t most = std::min(kMostHeadBytes, most_bytes_);
    if (end == std::string::npos ? bytes_.size() > most : end > most) return State::head_too_long;
    if (end == std::string::npos) return State::coming;
    head_bytes_ = next_chunk_ = end + 3;
    read_head();
  }
  if (is_chunked_) return look_at_chunks();
  return body_bytes_ > most_bytes_ || bytes_.size() - head_bytes_ >= body_bytes_ ? State::whole : State::coming;
}

// As httplib reads it: of fields of one name the first, numbers as strtoull has them.
void Incoming::read_head() {
  bool has_length = false, has_encoding = false;
  for (size_t at = 0; at < head_bytes_;) {
    const size_t end = bytes_.find('\n', at);
    const auto line = std::string_view(bytes_).substr(at, end - at);
    at = end + 1;
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const auto name = line.substr(0, colon);
    auto value = line.substr(colon + 1);
    value.remove_prefix(std::min(value.find_first_not_of(" \t"), value.size()));
    value = value.substr(0, value.find_last_not_of(" \t\r") + 1);
    if (are_same(name, "Content-Length") && !std::exchange(has_length, true))
      body_bytes_ = std::strtoull(std::string(value).c_str(), nullptr, 10);
    if (are_same(name, "Transfer-Encoding") && !std::exchange(has_encoding, true)) is_chunked_ = are_same(value, "chunked");
    if (are_same(name, "Expect")) waits_to_be_asked_ = are_same(value, "100-continue");
  }
}

// What is malformed counts as whole: it is refused where it is parsed.
Incoming::State Incoming::look_at_chunks() {
  while (next_chunk_ < bytes_.size()) {
    const size_t end = bytes_.find("\r\n", next_chunk_);
    if (end == std::string::npos) return bytes_.size() - next_chunk_ > kMostLineBytes ? State::whole : State::coming;
    if (is_last_chunk_) return State::whole;
    size_t length = 0;
    if (std::from_chars(bytes_.data() + next_chunk_, bytes_.data() + end, length, 16).ec != std::errc()) return State::whole;
    if (length > most_bytes_ || end + length - head_bytes_ > most_bytes_) return State::too_long;
    is_last_chunk_ = length == 0;
    next_chunk_ = end + 2 + (is_last_chunk_ ? 0 : length + 2);
  }
  return State::coming;
}

bool Incoming::wants_to_be_asked() { return head_bytes_ > 0 && std::exchange(waits_to_be_asked_, false); }

}  // namespace ingot::http
