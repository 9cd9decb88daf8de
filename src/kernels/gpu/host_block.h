// Runs kernels on the host, every thread of a block as a fiber: for tests of what has no GPU to run on. Blocks run one after another, they
// and the threads of a block in the order of their numbers or in one drawn by a seed, each until it waits; with a seed one wave runs ahead
// of the others until it comes to a barrier. What shows: results with odd sizes, threads that wait at different places or return while
// others wait, shared memory that nobody wrote (NaN), and in any order missing barriers, of code that GCC compiled with -fsanitize=thread
// (host_shared_memory.h). Matrix instructions are computed from what all threads of a wave hold (matrix.h). What does not show: speed, the
// order of memory between blocks, a GPU's own instructions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <typeinfo>

namespace ingot::kernels::gpu::host {

struct Place {
  int thread = 0, threads = 0;
  int64_t block = 0, blocks = 0;
};

/// Calls `kernel` for every thread of every block. `threads`: of a block, a multiple of the wave. `seed` 0: all in order.
/// `name`: of the kernel. Throws Error saying where threads wait for ever, or which two of them raced for what; and what a kernel throws.
void run(int64_t blocks, int threads, uint64_t seed, const std::function<void()>& kernel, const std::string& name = "the kernel");
/// Of a kernel's type, as it is written.
std::string name_of(const std::type_info& kernel);

// For dialect.h: of the fiber that runs.
Place current();
void barrier(int line);
float shuffle_xor(float value, int mask, int wave, int line);
/// What a thread hands to its wave at once.
constexpr int kExchangedBytes = 32;
/// Comes back when all threads of the wave have come: published_by(i) is then what thread i of the wave handed in, up to the next wait.
void exchange(const void* value, int bytes, int wave, int line);
const void* published_by(int thread, int wave);
/// That was a matrix instruction, for whose results the operands of the whole wave were needed.
void pass_matrices();
/// Memory of the block, the same for each `key`; of bits that are no number, in fp32 and bf16, until written.
void* shared_memory(int key, int64_t bytes, int wave);

}  // namespace ingot::kernels::gpu::host
