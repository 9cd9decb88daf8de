#include "checkpoint/format/digest.h"

#include <xxhash.h>

#include <new>

namespace ingot::checkpoint {

Digest digest_of(const void* data, int64_t size_bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, static_cast<size_t>(size_bytes));
  return {hash.low64, hash.high64};
}

Hasher::Hasher() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_.get()));
}

void Hasher::add(const void* data, int64_t size_bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_.get()), data, static_cast<size_t>(size_bytes));
}

Digest Hasher::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_.get()));
  return {hash.low64, hash.high64};
}

void Hasher::Free::operator()(void* state) const { XXH3_freeState(static_cast<XXH3_state_t*>(state)); }

}  // namespace ingot::checkpoint
