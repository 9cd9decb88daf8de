// Orthogonalisation by Newton-Schulz, the heart of Muon.
#pragma once

#include <vector>

#include "device/aten.h"
#include "optim/quintic.h"

namespace ingot::optim {

/// x [..., rows, cols], fp32 or fp64 -> nearly orthogonal matrices of the same shape: each divided by its Frobenius norm
/// (+ 1e-7), then the iterations of `steps` on the wide orientation (rows <= cols). All matrices by themselves; on a CPU they are
/// spread over the threads. fp64 follows the definition product by product; fp32 takes the cheaper of two equivalent forms
/// (newton_schulz.cpp), which agree with it to about 1e-3 of the largest element.
at::Tensor newton_schulz(const at::Tensor& x, const Quintics& steps);

/// own: in the dtype of the matrices. bf16: products of bf16 that are summed in fp32, each result rounded, which Muon was published with;
/// singular values come out within some 2 % of those of fp32. bf16_symmetric: the same, and of symmetric products of large matrices half is
/// mirrored, on GPUs by a kernel of our own (kernels/symmetric_matmul.h). bf16_small_tiles: of all but the smallest, on CPUs whose kernels
/// for that have small tiles (kernels/cpu_matmul.h). What several machines can is the least of what each can.
enum class Iterates { own, bf16, bf16_symmetric, bf16_small_tiles };

/// The fastest of those in bf16, and of all for matrices of fp32: of this CPU, or of GPUs.
Iterates iterates_in_bf16(bool on_cpu);
Iterates fastest_iterates(bool on_cpu);

/// FLOPs for one matrix, those of the form that is taken: own is fp32. Of GPUs those with the kernel.
double newton_schulz_flops(int64_t rows, int64_t cols, int64_t steps, Iterates iterates = Iterates::own);

/// How many matrices use the threads of a CPU: one matrix to a thread, which is faster for many; or all threads in each product,
/// whose last bits then do not depend on what else is in the list.
enum class Threads { share_matrices, share_gemms };

/// The same for many tensors at once. share_matrices falls back to share_gemms when there are too few.
std::vector<at::Tensor> newton_schulz(const std::vector<at::Tensor>& tensors, const Quintics& steps,
                                      Threads threads = Threads::share_matrices, Iterates iterates = Iterates::own);

}  // namespace ingot::optim
