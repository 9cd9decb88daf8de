// Orthogonalisation by Newton-Schulz, the heart of Muon.
#pragma once

#include <ATen/ATen.h>

namespace ingot::optim {

/// Coefficients of the usual quintic (facts zaya1 §5.1): x <- a x + (b A + c A^2) x with A = x x^T.
struct Quintic {
  double a = 3.4445, b = -4.7750, c = 2.0315;
};

/// x [..., rows, cols], fp32, fp64 or bf16 -> nearly orthogonal matrices of the same shape: each divided by its Frobenius norm
/// (+ 1e-7), then `steps` iterations on the wide orientation (rows <= cols).
at::Tensor newton_schulz(const at::Tensor& x, int64_t steps, const Quintic& quintic = {});

}  // namespace ingot::optim
