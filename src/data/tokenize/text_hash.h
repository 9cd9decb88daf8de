// XXH3-128 of bytes that come in parts, in hexadecimal digits as xxhsum -H2 prints them. It finds accidents, not forgeries. One thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace ingot::data {

class TextHash {
 public:
  TextHash();
  void add(std::string_view bytes);
  std::string hex() const;

 private:
  struct Free {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, Free> state_;
};

std::string hash_of(std::string_view bytes);

}  // namespace ingot::data
