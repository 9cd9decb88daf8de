// Digests of tensors, computed where they lie, for comparing what ranks or devices hold without moving it: the same bits on every device,
// with any number of threads. Limit: memory is read once.
//
// The bytes are words of 64 bits, little-endian, the last filled up with zeros; word 0 is their number, the data begin with word 1. A
// digest is two sums modulo 2^64 over the words w at positions p:
//
//   x = (w xor (seed + p * step)) * a;  x = (x xor x / 2^32) * b;  first += x xor x / 2^32;  second += (x mod 2^32) * (x / 2^32)
//
// Each step to a term of the first sum can be undone, so a change within one word always shows. Others, and words that change places, stay
// hidden by chance alone. It protects against accidents, not against forgers.
#pragma once

#include <vector>

#include "device/aten.h"

namespace ingot::kernels {

/// int64 [tensors, 2] on the tensors' device, which is one for all; the host does not wait. Contiguous tensors of any dtype and size, not
/// undefined. On a counting device: zeros.
at::Tensor digest(const std::vector<at::Tensor>& tensors);

}  // namespace ingot::kernels
