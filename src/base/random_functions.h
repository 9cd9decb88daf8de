// What the numbers of random.h are made of, in one source for the host, nvcc and clang as HIP. All of them get the same bits: besides
// integers there are only +, -, *, / and sqrt of double, whose results IEEE 754 defines. libm's log, sin and cos differ in their last bit
// between versions and devices.
//
// No product may be fused with a sum. nvcc is told so here, and clang, unless -ffp-contract=fast overrules it; gcc has no way but a flag:
// files for the host that include this one are compiled with -ffp-contract=off.
#pragma once

#include <cstdint>

#if defined(__HIPCC__)
#include <hip/hip_runtime.h>
#define INGOT_EVERYWHERE __device__ __forceinline__
#elif defined(__CUDACC__)
#include <cuda_runtime.h>
#define INGOT_EVERYWHERE __device__ __forceinline__
#else
#define INGOT_EVERYWHERE inline
#endif
#if defined(__clang__)
#define INGOT_UNFUSED _Pragma("clang fp contract(off)")
#else
#define INGOT_UNFUSED
#endif

namespace ingot::base {

/// A double of which every operation is rounded on its own.
struct Rounded {
  double value;
};
#if defined(__CUDACC__) && !defined(__HIPCC__)
INGOT_EVERYWHERE Rounded operator+(Rounded a, Rounded b) { return {__dadd_rn(a.value, b.value)}; }
INGOT_EVERYWHERE Rounded operator-(Rounded a, Rounded b) { return {__dsub_rn(a.value, b.value)}; }
INGOT_EVERYWHERE Rounded operator*(Rounded a, Rounded b) { return {__dmul_rn(a.value, b.value)}; }
INGOT_EVERYWHERE Rounded operator/(Rounded a, Rounded b) { return {__ddiv_rn(a.value, b.value)}; }
INGOT_EVERYWHERE Rounded root(Rounded a) { return {__dsqrt_rn(a.value)}; }
#else
INGOT_EVERYWHERE Rounded operator+(Rounded a, Rounded b) { INGOT_UNFUSED return {a.value + b.value}; }
INGOT_EVERYWHERE Rounded operator-(Rounded a, Rounded b) { INGOT_UNFUSED return {a.value - b.value}; }
INGOT_EVERYWHERE Rounded operator*(Rounded a, Rounded b) { INGOT_UNFUSED return {a.value * b.value}; }
INGOT_EVERYWHERE Rounded operator/(Rounded a, Rounded b) { INGOT_UNFUSED return {a.value / b.value}; }
INGOT_EVERYWHERE Rounded root(Rounded a) { INGOT_UNFUSED return {__builtin_sqrt(a.value)}; }
#endif

/// c0 + c1 z + … + c6 z^6. What is added to c0 is rounded at its own, smaller size; the rest has short chains of operations.
INGOT_EVERYWHERE Rounded polynomial(Rounded z, double c0, double c1, double c2, double c3, double c4, double c5, double c6) {
  const Rounded z2 = z * z;
  const Rounded low = Rounded{c1} + Rounded{c2} * z, middle = Rounded{c3} + Rounded{c4} * z, high = Rounded{c5} + Rounded{c6} * z;
  return Rounded{c0} + z * (low + z2 * (middle + z2 * high));
}

/// Natural logarithm of a normal x > 0; measured within 1 ulp. x = 2^e (1 + f) with 1 + f between sqrt(1/2) and sqrt(2). With
/// s = f / (2 + f), log(1 + f) = 2 atanh(s) = 2 s + s R, R = 2/3 s^2 + 2/5 s^4 + …, and 2 s = f - s f, of which f is exact. The polynomial
/// interpolates R / s^2 at Chebyshev's nodes.
INGOT_EVERYWHERE double log_of(double x) {
  const int64_t bits = __builtin_bit_cast(int64_t, x), exponent = (bits - 0x3fe6a09e667f3bcd) >> 52;  // of sqrt(1/2)
  const Rounded f = Rounded{__builtin_bit_cast(double, bits - exponent * (int64_t{1} << 52))} - Rounded{1};
  const Rounded s = f / (Rounded{2} + f), z = s * s, e{static_cast<double>(exponent)};
  const Rounded r = z * polynomial(z, 0x1.5555555555558p-1, 0x1.99999999952e2p-2, 0x1.2492492df148dp-2, 0x1.c71c62e5800a1p-3,
                                   0x1.7462b4ab2ef6bp-3, 0x1.39fe606542ddep-3, 0x1.2b584aae78a57p-3);
  const Rounded log2_high{0x1.62e42fefa38p-1}, log2_low{0x1.ef35793c7673p-45};  // e * log2_high is exact
  return (e * log2_high + (f - (s * (f - r) - e * log2_low))).value;
}

/// x where `bit` is even, else -x: without a jump, which a CPU would guess wrong each other time.
INGOT_EVERYWHERE double negated(double x, unsigned bit) {
  return __builtin_bit_cast(double, __builtin_bit_cast(uint64_t, x) ^ static_cast<uint64_t>(bit) << 63);
}
/// a where `bit` is even, else b.
INGOT_EVERYWHERE double chosen(double a, double b, unsigned bit) {
  const auto of_a = __builtin_bit_cast(uint64_t, a), of_b = __builtin_bit_cast(uint64_t, b);
  return __builtin_bit_cast(double, of_a ^ ((of_a ^ of_b) & (uint64_t{0} - (bit & 1u))));
}

struct SinCos {
  double sin, cos;
};

/// Of 2 pi u, 0 <= u < 1; measured within 1.6 ulp each. 4 u = quarters + t is exact, |t| <= 1/2; the polynomials interpolate
/// sin(pi/2 t) / t - 1 and (1 - cos(pi/2 t)) / t^2 over t^2 at Chebyshev's nodes.
INGOT_EVERYWHERE SinCos sin_cos_of_turns(double u) {
  const Rounded fours = Rounded{4} * Rounded{u};
  const auto quarters = static_cast<unsigned>(static_cast<int>((fours + Rounded{0.5}).value));
  const Rounded t = fours - Rounded{static_cast<double>(static_cast<int>(quarters))}, z = t * t;
  const Rounded s = t + t * polynomial(z, 0x1.243f6a8885a31p-1, -0x1.4abbce625be41p-1, 0x1.466bc677587f8p-4, -0x1.32d2cce2e5b19p-8,
                                       0x1.50782fda12d96p-13, -0x1.e30071afc3e59p-19, 0x1.e3f38399551bfp-25);
  const Rounded c = Rounded{1} - z * polynomial(z, 0x1.3bd3cc9be45dep+0, -0x1.03c1f081b5acp-2, 0x1.55d3c7e3cb241p-6, -0x1.e1f5068688d5bp-11,
                                                0x1.a6d1eef479be1p-16, -0x1.f9ce245cada0bp-22, 0x1.b2f3eb054afcdp-28);
  return {negated(chosen(s.value, c.value, quarters), quarters >> 1), negated(chosen(c.value, s.value, quarters), (quarters + 1) >> 1)};
}

struct PhiloxWords {
  uint32_t at[4];
};

INGOT_EVERYWHERE PhiloxWords philox_words(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  PhiloxWords c = {{static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32), static_cast<uint32_t>(counter_high),
                    static_cast<uint32_t>(counter_high >> 32)}};
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kMultiplier0 * c.at[0], p1 = kMultiplier1 * c.at[2];
    c = {{static_cast<uint32_t>(p1 >> 32) ^ c.at[1] ^ k0, static_cast<uint32_t>(p1), static_cast<uint32_t>(p0 >> 32) ^ c.at[3] ^ k1,
          static_cast<uint32_t>(p0)}};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

/// The upper 53 of 64 bits, as a number in [0, 1).
INGOT_EVERYWHERE double to_unit(uint32_t low, uint32_t high) {
  const uint64_t bits = (low | static_cast<uint64_t>(high) << 32) >> 11;
  return static_cast<double>(static_cast<int64_t>(bits)) * 0x1p-53;
}

struct NormalPair {
  double even, odd;
};

/// Elements 2 * pair and 2 * pair + 1 of a stream of standard normals (Box and Muller).
INGOT_EVERYWHERE NormalPair normal_pair(uint64_t key, uint64_t pair) {
  const PhiloxWords words = philox_words(key, pair, /*counter_high=*/1);
  const Rounded radius = root(Rounded{-2} * Rounded{log_of(1.0 - to_unit(words.at[0], words.at[1]))});
  const SinCos angle = sin_cos_of_turns(to_unit(words.at[2], words.at[3]));
  return {(radius * Rounded{angle.cos}).value, (radius * Rounded{angle.sin}).value};
}

/// A standard normal with another mean and deviation, rounded as initial values are.
INGOT_EVERYWHERE float scaled_normal(double normal, double mean, double deviation) {
  return static_cast<float>((Rounded{mean} + Rounded{deviation} * Rounded{normal}).value);
}

}  // namespace ingot::base
