// GCC puts a call before each load and store of code that is compiled with -fsanitize=thread. Here they go to the block that runs, in the
// place of TSan's library, which is not linked: threads of a block are fibers of one thread, between which that sees no race.
#include "kernels/gpu/host_shared_memory.h"

using ingot::kernels::gpu::host::note_access;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define INGOT_ACCESSES(bytes)                                                             \
  void __tsan_read##bytes(void* address) { note_access(address, bytes, false); }          \
  void __tsan_write##bytes(void* address) { note_access(address, bytes, true); }          \
  void __tsan_volatile_read##bytes(void* address) { note_access(address, bytes, false); } \
  void __tsan_volatile_write##bytes(void* address) { note_access(address, bytes, true); }
INGOT_ACCESSES(1)
INGOT_ACCESSES(2)
INGOT_ACCESSES(4)
INGOT_ACCESSES(8)
INGOT_ACCESSES(16)
#undef INGOT_ACCESSES

#define INGOT_ACCESSES(bytes)                                                              \
  void __tsan_unaligned_read##bytes(void* address) { note_access(address, bytes, false); } \
  void __tsan_unaligned_write##bytes(void* address) { note_access(address, bytes, true); }
INGOT_ACCESSES(2)
INGOT_ACCESSES(4)
INGOT_ACCESSES(8)
INGOT_ACCESSES(16)
#undef INGOT_ACCESSES

void __tsan_read_range(void* address, unsigned long bytes) { note_access(address, static_cast<int64_t>(bytes), false); }
void __tsan_write_range(void* address, unsigned long bytes) { note_access(address, static_cast<int64_t>(bytes), true); }

// Atomics are what they are: kernels have none that are these (dialect.h), but tests of kernels do.
#define INGOT_ATOMICS(bits, Type)                                                                                                      \
  Type __tsan_atomic##bits##_load(const volatile Type* from, int) { return __atomic_load_n(from, __ATOMIC_SEQ_CST); }                  \
  void __tsan_atomic##bits##_store(volatile Type* to, Type value, int) { __atomic_store_n(to, value, __ATOMIC_SEQ_CST); }              \
  Type __tsan_atomic##bits##_fetch_add(volatile Type* to, Type value, int) { return __atomic_fetch_add(to, value, __ATOMIC_SEQ_CST); } \
  Type __tsan_atomic##bits##_fetch_sub(volatile Type* to, Type value, int) { return __atomic_fetch_sub(to, value, __ATOMIC_SEQ_CST); }
INGOT_ATOMICS(8, char)
INGOT_ATOMICS(32, int)
INGOT_ATOMICS(64, long)
#undef INGOT_ATOMICS

}  // extern "C"
