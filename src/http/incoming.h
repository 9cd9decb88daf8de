// A request as its bytes come in: whether it is whole. It says nothing of whether the request is a good one: whoever parses it does.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ingot::http {

class Incoming {
 public:
  enum class State { coming, whole, head_too_long, too_long };

  /// The most bytes of a body.
  explicit Incoming(size_t most_bytes) : most_bytes_(most_bytes) {}

  /// A body whose head says that it is too long is not waited for: the request counts as whole.
  State add(std::string_view more);
  /// True once, when the head has come of a client that waits to be asked for the body (Expect: 100-continue).
  bool wants_to_be_asked();
  const std::string& bytes() const { return bytes_; }
  std::string take() { return std::move(bytes_); }

 private:
  void read_head();
  State look_at_chunks();

  const size_t most_bytes_;
  std::string bytes_;
  size_t looked_at_ = 0;   // bytes in which the head does not end
  size_t head_bytes_ = 0;  // 0: it has not come whole
  size_t body_bytes_ = 0;
  size_t next_chunk_ = 0;  // where its length stands
  bool is_chunked_ = false, is_last_chunk_ = false, waits_to_be_asked_ = false;
};

}  // namespace ingot::http
