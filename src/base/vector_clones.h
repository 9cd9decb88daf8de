// Simple loops for the widest vectors that the CPU has. Kernels proper have their own way (kernels/cpu/isa.h).
#pragma once

/// Before a function, whose loops it compiles for vectors of three widths; the program takes the widest at its start. Sums of floats stay
/// in the order that is written. Not where a thread or address sanitizer is, which is not ready when the choice is made.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define INGOT_VECTOR_CLONES __attribute__((optimize("O3"), target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define INGOT_VECTOR_CLONES
#endif
