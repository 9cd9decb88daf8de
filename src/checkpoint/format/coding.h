// Numbers, texts and digests as bytes, as docs/checkpoint-format.md has them; also what ranks tell each other in a save or load.
// A Decoder trusts nothing: what it cannot read is a CheckpointError, and what it allocates is bounded by what it was given.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"
#include "checkpoint/format/digest.h"
#include "tensor/logical_tensor.h"

namespace ingot::checkpoint {

class Encoder {
 public:
  template <class Integer>
  void fixed(Integer value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  // LEB128: seven bits a byte, lowest first, the top bit set on all but the last.
  void number(int64_t value) {
    auto rest = static_cast<uint64_t>(value);
    for (; rest >= 128; rest >>= 7) bytes += static_cast<char>(rest | 128);
    bytes += static_cast<char>(rest);
  }
  void text(const std::string& value) {
    number(static_cast<int64_t>(value.size()));
    bytes += value;
  }
  void digest(const Digest& value) {
    fixed(value.low);
    fixed(value.high);
  }
  std::string bytes;
};

class Decoder {
 public:
  Decoder(std::string_view bytes, const std::string& origin, const char* what) : bytes_(bytes), origin_(origin), what_(what) {}
  size_t left() const { return bytes_.size(); }
  std::string_view take(size_t count) {
    if (count > bytes_.size()) fail("ends too early");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  template <class Integer>
  Integer fixed() {
    Integer value;
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }
  int64_t number() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      if (bytes_.empty()) fail("ends too early");
      const auto byte = static_cast<uint8_t>(bytes_.front());
      bytes_.remove_prefix(1);
      if (shift == 63) fail("holds a number of more than 63 bits");
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) {
        if (byte == 0 && shift > 0) fail("holds a number with needless bytes");
        return static_cast<int64_t>(value);
      }
    }
  }
  // An index or number that is kept in 32 bits.
  uint32_t number32() {
    const int64_t value = number();
    if (value > UINT32_MAX) fail("holds a number of more than 32 bits");
    return static_cast<uint32_t>(value);
  }
  // A count of things of at least `least_bytes` each, so that what is reserved for them is bounded by the file.
  size_t count(size_t least_bytes) {
    const int64_t value = number();
    if (static_cast<uint64_t>(value) > bytes_.size() / least_bytes) fail("promises more than it holds");
    return static_cast<size_t>(value);
  }
  std::string text() { return std::string(take(count(1))); }
  Digest digest() {
    const auto low = fixed<uint64_t>();
    return {low, fixed<uint64_t>()};
  }
  void finish() const {
    if (!bytes_.empty()) fail("has bytes to spare");
  }
  const std::string& origin() const { return origin_; }
  [[noreturn]] void fail(const char* why) const { throw base::CheckpointError("{}: the {} {}; the file is damaged", origin_, what_, why); }

 private:
  std::string_view bytes_;
  std::string origin_;
  const char* what_;
};

/// Name, dtype, dims and shape.
void put(Encoder& out, const tensor::LogicalTensor& tensor);
void take(Decoder& in, tensor::LogicalTensor& tensor);
/// For each dim offset and extent.
void put(Encoder& out, const tensor::Box& box);
void take(Decoder& in, size_t dims, tensor::Box& box);

}  // namespace ingot::checkpoint
