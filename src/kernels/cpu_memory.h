// Where tensors on the CPU lie.
#pragma once

#include "base/page_pool.h"

namespace ingot::kernels {

/// False in a sanitizer's build, which watches over the C library's blocks, and with INGOT_CPU_ALLOCATOR=system. Throws
/// ConfigError when that variable says something else than system or pool.
bool page_pool_is_wanted();

/// From now on tensors of 64 KiB and more come from one page pool, so that the memory of a step is what is live in it
/// (base/page_pool.h); smaller ones from the C library as before. Does nothing where the pool is not wanted.
void use_page_pool();

/// What is free goes back to the kernel, so that resident memory is what is in use; of the pool alone, and of the C library too.
void release_freed_tensors();
void release_freed_memory();

/// Of the pool; zeros where it is not used.
base::PagePool::Use page_pool_use();

}  // namespace ingot::kernels
