#include "checkpoint/format/elements.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace ingot::checkpoint {
namespace {

using tensor::DType;

template <class Value>
Value load(const std::byte* data, int64_t index) {
  Value value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(value)), sizeof(value));
  return value;
}

// A binary floating-point number of a sign, `exponent_bits` and `mantissa_bits` as IEEE 754 would have it.
double small_float(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1), largest = (1u << exponent_bits) - 1;
  const uint32_t exponent = bits >> mantissa_bits & largest;
  const bool negative = bits >> (exponent_bits + mantissa_bits) & 1;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double value = 0;
  if (exponent == largest) {
    value = mantissa ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(mantissa + (1u << mantissa_bits), static_cast<int>(exponent) - bias - mantissa_bits);
  }
  return negative ? -value : value;
}

// "fn": no infinities, the largest exponent is an ordinary one, and all ones is NaN (OCP 8-bit floating point, E4M3).
double fp8_e4m3(uint8_t bits) {
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<double>::quiet_NaN();
  const double sign = bits & 0x80 ? -1 : 1;
  if ((bits & 0x78) == 0x78) return sign * std::ldexp(8 + (bits & 7), 8 - 3);
  return small_float(bits, 4, 3);
}

}  // namespace

int64_t numbers_per_element(DType dtype) { return dtype == DType::complex64 || dtype == DType::complex128 ? 2 : 1; }

double number_at(DType dtype, const std::byte* data, int64_t index) {
  switch (dtype) {
    case DType::fp64:
    case DType::complex128: return load<double>(data, index);
    case DType::fp32:
    case DType::complex64: return load<float>(data, index);
    case DType::bf16: return std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(data, index)) << 16);
    case DType::fp16: return small_float(load<uint16_t>(data, index), 5, 10);
    case DType::fp8_e4m3: return fp8_e4m3(load<uint8_t>(data, index));
    case DType::fp8_e5m2: return small_float(load<uint8_t>(data, index), 5, 2);
    case DType::int64: return static_cast<double>(load<int64_t>(data, index));
    case DType::int32: return load<int32_t>(data, index);
    case DType::int16: return load<int16_t>(data, index);
    case DType::int8: return load<int8_t>(data, index);
    case DType::uint8:
    case DType::boolean: return load<uint8_t>(data, index);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

void Difference::add(DType a_dtype, const std::byte* a, DType b_dtype, const std::byte* b, int64_t numbers) {
  for (int64_t i = 0; i < numbers; ++i) {
    const double x = number_at(a_dtype, a, i), y = number_at(b_dtype, b, i);
    if (std::isfinite(x)) max_reference = std::max(max_reference, std::abs(x));
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    ++different;
    max_abs = std::max(max_abs, std::isfinite(x) && std::isfinite(y) ? std::abs(x - y) : std::numeric_limits<double>::infinity());
  }
}

}  // namespace ingot::checkpoint
