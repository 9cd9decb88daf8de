#include "data/tokenize/text_hash.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace ingot::data {

TextHash::TextHash() : state_(XXH3_createState()) { XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_.get())); }

void TextHash::add(std::string_view bytes) { XXH3_128bits_update(static_cast<XXH3_state_t*>(state_.get()), bytes.data(), bytes.size()); }

std::string TextHash::hex() const {
  const auto hash = XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_.get()));
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

void TextHash::Free::operator()(void* state) const { XXH3_freeState(static_cast<XXH3_state_t*>(state)); }

std::string hash_of(std::string_view bytes) {
  TextHash hash;
  hash.add(bytes);
  return hash.hex();
}

}  // namespace ingot::data
