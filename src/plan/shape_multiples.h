// What a machine makes of the divisibility of a GEMM's side: rates of neighbouring sizes, by the largest power of two that divides them.
// Only measurements say this: formulas over sizes are smooth.
#pragma once

#include <optional>
#include <vector>

#include "plan/profile.h"

namespace ingot::plan {

struct DivisibilityClass {
  int64_t multiple = 1;    // the largest of 1, 8, 16, 32, 64 and 128 that divides its sizes
  int64_t sizes = 0;       // measured
  double flops_per_s = 0;  // median
  double share = 0;        // of the best class
};

struct ShapeMultiples {
  std::vector<DivisibilityClass> classes;  // by multiple
  int64_t multiple = 1;                    // the smallest whose slowest class has `wanted` of what any multiple's slowest has
  GemmRate like;                           // dtype, pass, m and k of the GEMMs; n of the smallest
  int64_t largest_n = 0;
  /// Of a size's class, or of the one below that was measured.
  double share_of(int64_t n) const;
};

/// The class of a size.
int64_t divisibility(int64_t n);

/// Of GEMMs of one dtype, pass, m and k, at sizes n close to each other. Nothing when they are of fewer than two classes.
std::optional<ShapeMultiples> shape_multiples(const std::vector<GemmRate>& neighbours, double wanted = 0.95);

/// The largest set of forward GEMMs in a profile's table that are alike but for n, which differs by 15 % at most. Grids over powers of
/// two have none.
std::vector<GemmRate> neighbouring_shapes(const MachineProfile& profile, const std::string& dtype);

}  // namespace ingot::plan
