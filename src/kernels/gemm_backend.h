// Which library multiplies matrices where the build has several ways: a switch of the whole process, as torch's own are, because a run must
// use one throughout. Set before anything computes; other libraries round differently, so a run keeps the one that it began with.
#pragma once

#include <string>
#include <vector>

#include "device/aten.h"

namespace ingot::kernels {

/// standard ("default"): on a GPU what torch takes by itself; on a CPU kernels of our own where those are the fastest (cpu_matmul.h), else
/// in fp32 the BLAS, in bf16 oneDNN where the CPU multiplies it in hardware, or else upcasting to fp32. ingot: those kernels. blas: what
/// torch takes by itself, MKL or what it was built with. onednn: a CPU's GEMMs by oneDNN, but those that are added to what is there in
/// fp32, which it would need another pass for and which stay with the default. upcast: bf16 as fp32. cublas and cublaslt: of a GPU; in a
/// ROCm build rocBLAS and hipBLASLt. tuned: for each GEMM of a GPU the algorithm that was measured to be fastest (gemm_tuning.h).
enum class GemmBackend { standard, ingot, blas, onednn, upcast, cublas, cublaslt, tuned };

const char* name_of(GemmBackend library);
/// Those that differ on this machine, the default first.
std::vector<GemmBackend> gemm_backends(at::ScalarType dtype, at::Device device);
/// Of those, or one that is the same as the default here. Throws ConfigError naming them where `name` is neither.
GemmBackend gemm_backend_named(const std::string& name, at::ScalarType dtype, at::Device device);

void use_gemm_backend(GemmBackend library);
GemmBackend gemm_backend();

/// a [m, k] times b [k, n], both fp32 or bf16 of a CPU -> [m, n] of their dtype, by oneDNN whatever the choice.
at::Tensor multiply_by_onednn(const at::Tensor& a, const at::Tensor& b);

}  // namespace ingot::kernels
