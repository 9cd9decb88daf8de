#include "kernels/cpu/isa.h"

#include <algorithm>

#include "base/environment.h"

#ifdef INGOT_X86_ISAS
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ingot::kernels::cpu {

#ifdef INGOT_X86_ISAS
namespace {

// Linux saves the tile registers of those processes only that have asked (arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
bool may_use_tiles() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

size_t isas_of_cpu() { return __builtin_cpu_supports("x86-64-v4") ? 3 : __builtin_cpu_supports("x86-64-v3") ? 2 : 1; }

// A value that torch does not know it leaves aside, with a warning; so do we.
size_t isas_asked_for() {
  const auto& most = base::environment().cpu_capability;
  return most == "default" ? 1 : most == "avx2" ? 2 : 3;
}

}  // namespace
#endif

std::span<const Isa> supported_isas() {
  static constexpr Isa kAll[] = {Isa::portable, Isa::avx2, Isa::avx512};
#ifdef INGOT_X86_ISAS
  static const size_t count = std::min(isas_of_cpu(), isas_asked_for());
#else
  static const size_t count = 1;
#endif
  return {kAll, count};
}

std::span<const PairUnit> supported_pair_units() {
  static constexpr PairUnit kAll[] = {PairUnit::none, PairUnit::avx512_bf16, PairUnit::amx};
  static const size_t count = [] {
#ifdef INGOT_X86_ISAS
    if (best_isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16")) {
      const bool has_tiles = __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16");
      return has_tiles && may_use_tiles() ? 3 : 2;
    }
#endif
    return 1;
  }();
  return {kAll, count};
}

PairUnit pair_unit_of_matrices() {
  const auto best = best_pair_unit();
#ifdef INGOT_X86_ISAS
  if (best == PairUnit::avx512_bf16 && !__builtin_cpu_is("amd")) return PairUnit::none;
#endif
  return best;
}

const char* name(Isa isa) { return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "portable"; }

const char* name(PairUnit unit) { return unit == PairUnit::amx ? "amx" : unit == PairUnit::avx512_bf16 ? "avx512_bf16" : "none"; }

}  // namespace ingot::kernels::cpu
