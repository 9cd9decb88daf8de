// Shared memory of a block that the host runs (host_block.h), and who touched which byte of it since the block's last barrier. Two threads
// that touch the same byte between two barriers, one of them writing, are a race in whatever order they came: so one order finds it that
// would have hidden it from the results. Shuffles order nothing, as on a GPU. A matrix instruction orders what the threads of its wave have
// read before what they write behind it: its results need the operands of all of them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ingot::kernels::gpu::host {

class SharedMemory {
 public:
  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Of a block of `threads` in waves of `wave`. The same for each `key`; of bits that are no number, in fp32 and bf16, until written. What
  /// lies behind `bytes` is ASan's.
  void* area(int key, int64_t bytes, int threads, int wave);

  /// What `thread` loads or stores, anywhere: only areas count.
  void note(int thread, const void* address, int64_t bytes, bool is_write);
  /// All threads have come to the barrier of that line: what was touched before is ordered before what comes.
  void pass_barrier(int line);
  /// `thread` comes out of a matrix instruction of its wave.
  void pass_matrices(int thread);
  /// The first race, in words; empty: none.
  const std::string& race() const { return race_; }

 private:
  static constexpr int16_t kNobody = -1;
  struct Byte {
    int32_t barriers = -1;                                                 // that had been passed when it was touched
    int16_t writer = kNobody, reader = kNobody, foreign_reader = kNobody;  // foreign: of another wave than the reader's
    int16_t recent_reader = kNobody, other_recent = kNobody;               // of the reader's wave, since its last matrix instruction
    int32_t recent = 0;                                                    // which that was
  };
  struct alignas(16) Vector {
    char bytes[16];
  };
  struct Area {
    int number = 0;  // in the order in which kernels ask for them
    std::vector<Vector> vectors;
    int64_t bytes = 0;
    std::vector<Byte> log;
  };

  void note(const Area& area, Byte& byte, int64_t place, int16_t thread, bool is_write);
  void note_read(Byte& byte, int16_t thread) const;
  int16_t reader_before(const Byte& byte, int16_t writer) const;
  bool are_together(int16_t a, int16_t b) const { return a / wave_ == b / wave_; }

  std::map<int, Area> areas_;
  uintptr_t begin_ = 0, end_ = 0;  // all areas lie between
  int32_t barriers_ = 0;
  int last_line_ = 0, wave_ = 1;
  std::vector<int32_t> matrices_;  // instructions that each thread has come out of
  std::string race_;
};

/// What code compiled with -fsanitize=thread says of its loads and stores (host_accesses.cpp).
void note_access(const void* address, int64_t bytes, bool is_write);

}  // namespace ingot::kernels::gpu::host
