// Which instruction set the CPU kernels run with. Sources listed under ingot_isa_sources() in CMakeLists.txt are compiled once
// for each set, into a namespace of its own (INGOT_ISA), and reach the rest of the program through pointers to functions,
// of which best_isa() picks one. Such sources include no ATen and no standard containers: an inline function that is compiled
// with AVX-512 there must never be the copy that the linker keeps for a machine without it.
#pragma once

#include <span>

namespace ingot::kernels::cpu {

enum class Isa { portable, avx2, avx512 };  // the baseline of the compiler; x86-64-v3; x86-64-v4

/// The instruction sets that this program has kernels for, this CPU can run and ATEN_CPU_CAPABILITY (torch's own limit: default, avx2 or
/// avx512) leaves, best one last. Never empty.
std::span<const Isa> supported_isas();

inline Isa best_isa() { return supported_isas().back(); }

/// What multiplies pairs of bf16 and adds the products up in fp32 by one operation: AVX512_BF16's vectors, or AMX's tiles, which has those
/// too. Both only beside Isa::avx512.
enum class PairUnit { none, avx512_bf16, amx };

/// Those that this CPU has and this process may use, best one last. Never empty.
std::span<const PairUnit> supported_pair_units();

inline PairUnit best_pair_unit() { return supported_pair_units().back(); }

/// By which matrices are multiplied, in GEMMs and attention: the best one, or none where fp32 was measured to be as fast. AVX512_BF16 on an
/// Intel CPU starts one operation on pairs where it starts two on floats, and on an AMD CPU (Zen 5) two.
PairUnit pair_unit_of_matrices();

const char* name(Isa isa);
const char* name(PairUnit unit);

}  // namespace ingot::kernels::cpu
