// GEMMs by cuBLASLt with a choice of its algorithms. No torch.
#pragma once

#include <string>

#include "kernels/gpu/library_gemm.h"

namespace ingot::kernels::gpu {

/// The library with its version.
std::string gemm_library();
/// Into `found` up to `most` of those for `gemm`, the library's first choice first; how many, or minus an error of the library's. None adds
/// up parts of a sum in the numbers of `out`.
int gemm_algorithms(const LibraryGemm& gemm, int device, GemmAlgorithm* found, int most);
/// Whether the library would run that for `gemm` within `algorithm.workspace_bytes`: 1 or 0.
int is_able(const LibraryGemm& gemm, const GemmAlgorithm& algorithm, int device);
/// On a stream of CUDA's, with `algorithm.workspace_bytes` at `workspace`, 256 aligned. An error of the library's, or 0.
int run_gemm(const LibraryGemm& gemm, const GemmAlgorithm& algorithm, int device, void* workspace, void* stream);

}  // namespace ingot::kernels::gpu
