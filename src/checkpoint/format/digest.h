// XXH3-128, the checksum of everything in a checkpoint. It finds accidents, not forgeries.
#pragma once

#include <cstdint>
#include <memory>

namespace ingot::checkpoint {

struct Digest {
  uint64_t low = 0, high = 0;
  bool operator==(const Digest&) const = default;
};

Digest digest_of(const void* data, int64_t size_bytes);

/// The digest of bytes that come in parts. Belongs to one thread.
class Hasher {
 public:
  Hasher();
  void add(const void* data, int64_t size_bytes);
  Digest digest() const;

 private:
  struct Free {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, Free> state_;
};

}  // namespace ingot::checkpoint
