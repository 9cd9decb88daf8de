// Row-wise CPU kernels that are compiled once per instruction set (isa.h). rows_NAME.h has the problems they take, rows_NAME.cpp the
// code; neither includes ATen. Every function works on rows [begin, end) on the calling thread; rows_parallel.h spreads them.
// Fields of type void* are float or bf16, told by `is_bf16`; everything else is float. Sizes count elements.
//
// Arithmetic limit: all of these are bound by memory; each reads its inputs once and writes its outputs once.
#pragma once

#include <cstdint>

#define INGOT_DECLARE_IN(isa, name, ...) \
  namespace isa {                        \
  void name(__VA_ARGS__);                \
  }

/// Declares a kernel by its arguments, in namespace ingot::kernels::cpu. To a source that is compiled for one instruction set `name` is
/// that set's; elsewhere it runs the best one that this CPU can.
#ifdef INGOT_ISA
#define INGOT_ROW_KERNEL(name, ...)              \
  INGOT_DECLARE_IN(INGOT_ISA, name, __VA_ARGS__) \
  using INGOT_ISA::name
#else

#include "kernels/cpu/isa.h"

namespace ingot::kernels::cpu {

template <class... Args>
struct RowKernel {
  void (*portable)(Args...), (*avx2)(Args...), (*avx512)(Args...);
  void operator()(Args... args) const { (best_isa() == Isa::avx512 ? avx512 : best_isa() == Isa::avx2 ? avx2 : portable)(args...); }
};
template <class... Args>
RowKernel(void (*)(Args...), void (*)(Args...), void (*)(Args...)) -> RowKernel<Args...>;

}  // namespace ingot::kernels::cpu

#ifdef INGOT_X86_ISAS
#define INGOT_ROW_KERNEL(name, ...)             \
  INGOT_DECLARE_IN(portable, name, __VA_ARGS__) \
  INGOT_DECLARE_IN(avx2, name, __VA_ARGS__)     \
  INGOT_DECLARE_IN(avx512, name, __VA_ARGS__)   \
  inline constexpr RowKernel name { portable::name, avx2::name, avx512::name }
#else
#define INGOT_ROW_KERNEL(name, ...)             \
  INGOT_DECLARE_IN(portable, name, __VA_ARGS__) \
  inline constexpr RowKernel name { portable::name, portable::name, portable::name }
#endif

#endif
