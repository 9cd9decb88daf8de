// Elements of tensors as GGUF files keep them.
#pragma once

#include "device/aten.h"
#include "gguf/file.h"

namespace ingot::gguf {

/// Hands the elements of `value` to `sink` as `type`, some rows at a time. Rows of q8_0 are multiples of its block. Throws NumericError
/// where fp16 or the scale of a q8_0 block overflows; `name` is for the message.
void encode(const at::Tensor& value, Type type, const std::string& name, const Sink& sink);

/// Blocks of 32 elements, each as its scale in fp16, max|x| / 127, and 32 signed bytes x / scale, rounded half away from 0.
/// `elements` is a multiple of 32.
std::string encode_q8_0(const float* values, int64_t elements);

}  // namespace ingot::gguf
