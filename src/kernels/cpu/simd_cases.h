// The operations of simd.h over arrays, compiled once per instruction set, for simd_test.cpp. Counts are multiples of 16.
#pragma once

#include <cstdint>

namespace ingot::kernels::cpu {

struct SimdCases {
  void (*exp)(const float* from, float* to, int64_t count);
  void (*exp2)(const float* from, float* to, int64_t count);
  void (*sigmoid)(const float* from, float* to, int64_t count);
  void (*to_bf16)(const float* from, uint16_t* to, int64_t count);
  void (*from_bf16)(const uint16_t* from, float* to, int64_t count);
  void (*sums)(const float* from, float* to, int64_t count);       // of whole vectors, in every lane
  void (*sums_of_vectors)(const float* from, float* to);           // as many vectors as lanes, to one
  void (*maxima)(const float* from, float* to, int64_t count);     // likewise
  void (*copy_part)(const float* from, float* to, int64_t count);  // count below 4, through load_part and store_part
  int64_t lanes;
};

namespace portable {
extern const SimdCases simd_cases;
}
namespace avx2 {
extern const SimdCases simd_cases;
}
namespace avx512 {
extern const SimdCases simd_cases;
}
namespace wide {
extern const SimdCases simd_cases;
}

}  // namespace ingot::kernels::cpu
