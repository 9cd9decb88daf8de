// What kernels in this folder are written in: one source for nvcc, for clang as HIP, and for the host's compiler, which runs it thread by
// thread in tests (host_block.h). Only this header knows the target.
//
// Rules: all threads of a block come to every barrier() and block_sum() or block_max(), at the same place of the source, and return after
// the last of them; blocks never wait for each other; what a thread writes to shared memory others read after a barrier.
#pragma once

#include <cstdint>

#if defined(__CUDACC__) || defined(__HIPCC__)
#if defined(__HIPCC__)
#include <hip/hip_runtime.h>
#else
#include <cuda_runtime.h>
#endif
#define INGOT_DEVICE __device__ __forceinline__
#define INGOT_ANYWHERE __host__ __device__ __forceinline__
#define INGOT_UNROLL _Pragma("unroll")
#define INGOT_ROLLED _Pragma("unroll 1")
#else
#include <cmath>
#include <cstring>

#include "kernels/gpu/host_block.h"
#define INGOT_DEVICE inline
#define INGOT_ANYWHERE inline
#define INGOT_UNROLL
#define INGOT_ROLLED
#endif

// Threads of a wave (a warp), a constant of the target; the host has kernels of both, each in a namespace of its own.
#ifndef INGOT_WAVE
#if defined(__HIPCC__)
#define INGOT_WAVE 64
#else
#define INGOT_WAVE 32
#endif
#endif
#if INGOT_WAVE == 64
#define INGOT_WAVE_NAMESPACE wave64
#else
#define INGOT_WAVE_NAMESPACE wave32
#endif

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

constexpr int kWave = INGOT_WAVE, kMostThreads = 1024;

#if defined(__CUDACC__) || defined(__HIPCC__)
#if defined(__HIPCC__)
using Stream = hipStream_t;
inline int last_error() { return hipGetLastError(); }
/// Whether tensor cores multiply e4m3 and e5m2 as OCP defines them.
inline bool multiplies_fp8(int) { return false; }  // MI300X has formats of its own
/// Whether the instructions of matrix.h reach more than half of what others of the GPU do.
inline bool has_fast_matrices(int) { return true; }
inline bool multiplies_groups_of_fp8(int) { return false; }
#else
using Stream = cudaStream_t;
inline int last_error() { return cudaGetLastError(); }
inline bool multiplies_fp8(int device) {
  int major = 0, minor = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && 10 * major + minor >= 89;
}
/// Data centres' Blackwell has tcgen05 for that: with mma.sync a B200 did a third of its GEMMs' FLOP/s (tile-ai/tilelang, issue 1787).
inline bool has_fast_matrices(int device) {
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major != 10 && major != 11;
}
/// Whether libtorch 2.11's grouped GEMM of e4m3 runs there: it is compiled for sm_90a alone.
inline bool multiplies_groups_of_fp8(int device) {
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major == 9;
}
#endif
INGOT_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
INGOT_DEVICE int block_threads() { return static_cast<int>(blockDim.x); }
INGOT_DEVICE int64_t block_index() { return blockIdx.x; }
INGOT_DEVICE int64_t grid_blocks() { return gridDim.x; }
INGOT_DEVICE void barrier() { __syncthreads(); }
#if defined(__HIPCC__)
INGOT_DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor(value, mask); }
INGOT_DEVICE double shuffle_xor(double value, int mask) { return __shfl_xor(value, mask); }
INGOT_DEVICE uint64_t shuffle_xor(uint64_t value, int mask) { return __shfl_xor(value, mask); }
#else
INGOT_DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
INGOT_DEVICE double shuffle_xor(double value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
INGOT_DEVICE uint64_t shuffle_xor(uint64_t value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
#endif
/// In no order: of integers that is no matter.
INGOT_DEVICE void add_atomically(uint64_t* to, uint64_t value) {
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(to), value);
}
INGOT_DEVICE float exponential(float x) { return expf(x); }
INGOT_DEVICE float logarithm(float x) { return logf(x); }
INGOT_DEVICE float root(float x) { return sqrtf(x); }
INGOT_DEVICE uint32_t bits_of(float x) { return __float_as_uint(x); }
INGOT_DEVICE float float_of(uint32_t bits) { return __uint_as_float(bits); }
#define INGOT_SHARED(type, name, count) __shared__ __attribute__((aligned(16))) type name[count]
#else
INGOT_DEVICE int thread_index() { return host::current().thread; }
INGOT_DEVICE int block_threads() { return host::current().threads; }
INGOT_DEVICE int64_t block_index() { return host::current().block; }
INGOT_DEVICE int64_t grid_blocks() { return host::current().blocks; }
INGOT_DEVICE void barrier(int line = __builtin_LINE()) { host::barrier(line); }
INGOT_DEVICE float shuffle_xor(float value, int mask, int line = __builtin_LINE()) { return host::shuffle_xor(value, mask, kWave, line); }
template <class T>
INGOT_DEVICE T shuffle_xor_of_eight_bytes(T value, int mask, int line) {
  static_assert(sizeof value == 8);
  host::exchange(&value, sizeof value, kWave, line);
  std::memcpy(&value, host::published_by(thread_index() % kWave ^ mask, kWave), sizeof value);
  return value;
}
INGOT_DEVICE double shuffle_xor(double value, int mask, int line = __builtin_LINE()) {
  return shuffle_xor_of_eight_bytes(value, mask, line);
}
INGOT_DEVICE uint64_t shuffle_xor(uint64_t value, int mask, int line = __builtin_LINE()) {
  return shuffle_xor_of_eight_bytes(value, mask, line);
}
INGOT_DEVICE void add_atomically(uint64_t* to, uint64_t value) { *to += value; }  // blocks run one after another
INGOT_DEVICE float exponential(float x) { return std::exp(x); }
INGOT_DEVICE float logarithm(float x) { return std::log(x); }
INGOT_DEVICE float root(float x) { return std::sqrt(x); }
INGOT_DEVICE uint32_t bits_of(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
INGOT_DEVICE float float_of(uint32_t bits) {
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
#define INGOT_SHARED(type, name, count) \
  type* const name = static_cast<type*>(host::shared_memory(__COUNTER__, (count) * sizeof(type), kWave))
#endif
#define INGOT_SHARED_FLOATS(name, count) INGOT_SHARED(float, name, count)

struct Bf16 {
  uint16_t bits;
};

INGOT_DEVICE float to_float(float x) { return x; }
INGOT_DEVICE float to_float(Bf16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }
INGOT_DEVICE void from_float(float x, float& out) { out = x; }
INGOT_DEVICE void from_float(float x, double& out) { out = x; }
/// To the nearest, ties to even.
INGOT_DEVICE void from_float(float x, Bf16& out) {
  const uint32_t bits = bits_of(x);
  const bool is_nan = x != x;
  out.bits = static_cast<uint16_t>(is_nan ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

INGOT_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

/// Of rows, channels and vectors, of which there are fewer than 2^32: a division of 64 bits takes a hundred instructions and calls a
/// function.
INGOT_DEVICE int64_t quotient(int64_t a, int64_t b) { return static_cast<uint32_t>(a) / static_cast<uint32_t>(b); }
INGOT_DEVICE int64_t remainder(int64_t a, int64_t b) { return static_cast<uint32_t>(a) % static_cast<uint32_t>(b); }
/// Where run `run` of `rows` begins that are cut into `runs`; rows * runs below 2^32.
INGOT_DEVICE int64_t first_row_of(int64_t rows, int64_t run, int64_t runs) { return quotient(rows * run, runs); }

template <int n>
struct Constant {};

/// What a thread loads and stores at once, from an address that is a multiple of its size.
template <class T, int count>
struct alignas(sizeof(T) * count) Vector {
  T at[count];
};

/// Vectors of eight bf16 on their way from global to shared memory, at addresses of 16 bytes: each is started and finished with the same
/// `to`, all of them before the next start. NVIDIA copies them beside the thread (cp.async), elsewhere they wait in its registers. There
/// for the block after a barrier.
template <int vectors>
struct VectorsOnTheirWay {
#if defined(__CUDACC__)
  /// Of vector i the first `count` elements, then zeros.
  INGOT_DEVICE void start(int, Bf16* to, const Bf16* from, int count) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from),
                 "r"(count * 2)
                 : "memory");
  }
  INGOT_DEVICE void finish(int i, Bf16*) {
    if (i == 0) asm volatile("cp.async.wait_all;" ::: "memory");
  }
#else
  Vector<Bf16, 8> at[vectors];

  INGOT_DEVICE void start(int i, Bf16*, const Bf16* from, int count) {
    at[i] = {};
    if (count == 8) at[i] = *reinterpret_cast<const Vector<Bf16, 8>*>(from);
    else
      for (int n = 0; n < 8; ++n)
        if (n < count) at[i].at[n] = from[n];
  }
  INGOT_DEVICE void finish(int i, Bf16* to) { *reinterpret_cast<Vector<Bf16, 8>*>(to) = at[i]; }
#endif
};

/// Whether vectors of 16 bytes may be read from there; null may.
INGOT_ANYWHERE bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

struct Sum {
  static INGOT_DEVICE float of(float a, float b) { return a + b; }
};
struct Max {
  static INGOT_DEVICE float of(float a, float b) { return b > a ? b : a; }
};

/// Of the values of a wave's threads, all of which must come: the same on all of them, in a fixed order.
template <class Operation>
INGOT_DEVICE float wave_reduce(float value) {
  for (int mask = kWave / 2; mask > 0; mask /= 2) value = Operation::of(value, shuffle_xor(value, mask));
  return value;
}
INGOT_DEVICE float wave_sum(float value) { return wave_reduce<Sum>(value); }

/// The same of the block's threads.
template <class Operation>
INGOT_DEVICE float block_reduce(float value) {
  INGOT_SHARED_FLOATS(of_waves, kMostThreads / 32);
  value = wave_reduce<Operation>(value);
  if (thread_index() % kWave == 0) of_waves[thread_index() / kWave] = value;
  barrier();
  float result = of_waves[0];
  for (int wave = 1; wave < block_threads() / kWave; ++wave) result = Operation::of(result, of_waves[wave]);
  barrier();  // before the next one writes there
  return result;
}
INGOT_DEVICE float block_sum(float value) { return block_reduce<Sum>(value); }
INGOT_DEVICE float block_max(float value) { return block_reduce<Max>(value); }

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
