// Sums whose bits do not depend on the order of their terms: each term is rounded to a multiple of one power of two, so that a sum in
// fp64 needs no rounding as long as it stays below 2^53 of that power. (After Demmel and Nguyen, "Fast reproducible floating-point
// summation", 2013; here the power is always the same, so that nobody has to agree on it.)
#pragma once

#include <array>
#include <vector>

#include "device/aten.h"

namespace ingot::kernels {

/// Of gradients: multiples of 2^-48, 3.6e-15, and sums below 32. Beyond, the order may show again.
inline constexpr int kGradientExponent = -48;
/// Of losses of microbatches: multiples of 2^-42, and sums below 2048.
inline constexpr int kLossExponent = -42;

/// `x` to the nearest multiple of 2^exponent, ties to even, below 2^(51 + exponent); beyond to fewer digits.
double rounded(double x, int exponent);

/// sum = rounded terms, or += where it `adds`; fp64, as many elements as `terms` fp32 or fp64. Limit: memory, 4 bytes read, 8 written and,
/// where it adds, read of each element.
void round_into(const at::Tensor& sum, const at::Tensor& terms, int exponent, bool adds);

/// A sum of squares is made of parts: multiples of 2^-20, of 2^-43 and of 2^-66. Added up part by part they are exact, in any order, up to
/// 2^30 blocks of kSquareBlock elements and a total of 2^33.
inline constexpr std::array kSquareExponents = {-20, -43, -66};
inline constexpr int64_t kSquareParts = kSquareExponents.size(), kSquareBlock = 32;

/// Of each tensor [n], fp32 or fp64, all on one device: fp64 [tensors, kSquareParts] there; not finite where an element is not. Blocks of
/// kSquareBlock elements, from the first on, are added up in a fixed order: slices of a tensor that begin at multiples of kSquareBlock add
/// up to the bits of the whole. Limit: memory, one read, and two launches for 128 tensors of fp32.
at::Tensor square_sums(const std::vector<at::Tensor>& tensors);

}  // namespace ingot::kernels
