#include "kernels/cpu/simd_cases.h"

#include "kernels/cpu/simd.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

template <Float (*kOperation)(Float), class From, class To>
void each(const From* from, To* to, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) store(to + i, kOperation(load(from + i)));
}

INGOT_INLINE Float same(Float x) { return x; }

void sums_of_vectors(const float* from, float* to) {
  Float x[kLanes];
  for (int i = 0; i < kLanes; ++i) x[i] = load(from + i * kLanes);
  store(to, sums_of_lanes(x));
}

void copy_part(const float* from, float* to, int64_t count) { store_part(to, load_part(from, count) * 1.0f, count); }

}  // namespace

extern const SimdCases simd_cases;
const SimdCases simd_cases = {
    .exp = each<exp>,
    .exp2 = each<exp2>,
    .sigmoid = each<sigmoid>,
    .to_bf16 = each<same>,
    .from_bf16 = each<same>,
    .sums = each<sum_of_lanes>,
    .sums_of_vectors = sums_of_vectors,
    .maxima = each<max_of_lanes>,
    .copy_part = copy_part,
    .lanes = kLanes,
};

}  // namespace ingot::kernels::cpu::INGOT_ISA
