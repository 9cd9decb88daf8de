// How many tokens a page of cached keys or values has. Includes nothing: kernels of every instruction set read it.
#pragma once

#include <cstdint>

namespace ingot::kernels {

inline constexpr int64_t kPageTokens = 32;  // what equal beginnings are shared by; divides the chunks that decoding reads

}  // namespace ingot::kernels
