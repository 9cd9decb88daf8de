#include "gguf/encode.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace ingot::gguf {
namespace {

constexpr int64_t kChunk = int64_t{1} << 20;  // elements that are turned at a time: a multiple of every block

}  // namespace

std::string encode_q8_0(const float* values, int64_t elements) {
  const int64_t block = block_size(Type::q8_0);
  std::string bytes(static_cast<size_t>(size_bytes(Type::q8_0, elements)), '\0');
  char* out = bytes.data();
  for (const float* x = values; x < values + elements; x += block) {
    float largest = 0;
    for (int64_t i = 0; i < block; ++i) largest = std::max(largest, std::abs(x[i]));
    const float scale = largest / 127, inverse = scale > 0 ? 1 / scale : 0;
    const c10::Half stored(scale);
    std::memcpy(out, &stored.x, sizeof stored.x);
    out += sizeof stored.x;
    for (int64_t i = 0; i < block; ++i) *out++ = static_cast<char>(static_cast<int8_t>(std::round(x[i] * inverse)));
  }
  return bytes;
}

void encode(const at::Tensor& value, Type type, const std::string& name, const Sink& sink) {
  const at::NoGradGuard no_grad;
  const auto flat = value.detach().to(at::kCPU).contiguous().view({-1});
  for (int64_t from = 0; from < flat.numel(); from += kChunk) {
    const auto chunk = flat.narrow(0, from, std::min(kChunk, flat.numel() - from)).to(at::kFloat);
    const auto as = [&](at::ScalarType dtype) {
      const auto turned = chunk.to(dtype);
      sink(turned.data_ptr(), turned.numel() * turned.element_size());
    };
    const float largest = chunk.abs().max().item<float>();
    const float limit = type == Type::fp16 ? 65504.0F : type == Type::q8_0 ? 127 * 65504.0F : std::numeric_limits<float>::max();
    if (!(largest <= limit))
      throw base::NumericError("{} has a value of {}, which {} cannot hold; choose --dtype bf16 or fp32, or check the model", name, largest,
                               type == Type::fp16   ? "fp16"
                               : type == Type::q8_0 ? "q8_0"
                                                    : "a model");
    if (type == Type::q8_0) {
      const auto bytes = encode_q8_0(chunk.const_data_ptr<float>(), chunk.numel());
      sink(bytes.data(), static_cast<int64_t>(bytes.size()));
    } else {
      as(type == Type::fp32 ? at::kFloat : type == Type::fp16 ? at::kHalf : at::kBFloat16);
    }
  }
}

}  // namespace ingot::gguf
