#include "checkpoint/format/nonfinite.h"

namespace ingot::checkpoint {
namespace {

// NaN and Inf are the values whose exponent has all bits set.
template <class Word>
bool any_with(Word exponent, const std::byte* data, int64_t size_bytes) {
  const auto* words = reinterpret_cast<const Word*>(data);
  const int64_t count = size_bytes / static_cast<int64_t>(sizeof(Word));
  constexpr int64_t kStride = 4096;  // looked at between two branches
  for (int64_t begin = 0; begin < count; begin += kStride) {
    const int64_t end = begin + kStride < count ? begin + kStride : count;
    Word found = 0;
    for (int64_t i = begin; i < end; ++i) found |= static_cast<Word>((words[i] & exponent) == exponent);
    if (found) return true;
  }
  return false;
}

}  // namespace

bool has_nonfinite(tensor::DType dtype, const std::byte* data, int64_t size_bytes) {
  switch (dtype) {
    case tensor::DType::fp64:
    case tensor::DType::complex128: return any_with<uint64_t>(0x7FF0000000000000u, data, size_bytes);
    case tensor::DType::fp32:
    case tensor::DType::complex64: return any_with<uint32_t>(0x7F800000u, data, size_bytes);
    case tensor::DType::bf16: return any_with<uint16_t>(0x7F80u, data, size_bytes);
    case tensor::DType::fp16: return any_with<uint16_t>(0x7C00u, data, size_bytes);
    default: return false;
  }
}

}  // namespace ingot::checkpoint
