// What a router makes of its logits: which classes each token goes to, and the weights that they get. A fused kernel on GPUs in fp32;
// elsewhere a composition of ATen operations, on a CPU too: at::softmax's bits decide between classes that are about equal.
#pragma once

#include <functional>

#include "device/aten.h"

namespace ingot::kernels {

struct TopkSoftmax {
  at::Tensor weight;  // [tokens * top_k], in the dtype of the logits; their gradients come through it
  at::Tensor choice;  // int64 [tokens * top_k], each token's side by side, best first
};

/// Takes the classes that were chosen, int64 [tokens * top_k], and returns those that count, among which a token's may come twice.
using ChangeChoice = std::function<at::Tensor(const at::Tensor& choice)>;

/// logits [tokens, classes], bias [classes]. Chosen are the top_k best of softmax(logits) + bias: of equal ones the first classes, where
/// the kernel is fused or top_k is 1. A weight is the class's probability, without the bias; where `renormalises`, a token's sum to 1.
TopkSoftmax topk_softmax(const at::Tensor& logits, const at::Tensor& bias, int64_t top_k, bool renormalises,
                         const ChangeChoice& change = {});

}  // namespace ingot::kernels
