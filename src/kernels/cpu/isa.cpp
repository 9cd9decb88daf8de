#include "kernels/cpu/isa.h"

namespace ingot::kernels::cpu {

std::span<const Isa> supported_isas() {
  static constexpr Isa kAll[] = {Isa::portable, Isa::avx2, Isa::avx512};
  static const size_t count = [] {
#ifdef INGOT_X86_ISAS
    if (__builtin_cpu_supports("x86-64-v4")) return 3;
    if (__builtin_cpu_supports("x86-64-v3")) return 2;
#endif
    return 1;
  }();
  return {kAll, count};
}

bool has_bf16_pairs() {
#ifdef INGOT_X86_ISAS
  static const bool has = best_isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16");
  return has;
#else
  return false;
#endif
}

const char* name(Isa isa) { return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "portable"; }

}  // namespace ingot::kernels::cpu
