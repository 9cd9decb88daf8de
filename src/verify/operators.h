// The operators that `ingot verify op` knows, one file each.
#pragma once

#include "verify/fixture.h"
#include "verify/verify.h"

namespace ingot::verify {

/// Tolerances of operators: the options' own, else by precision.
Tolerance operator_tolerance(const Options& options);

Report verify_linear_attention(const Fixture& fixture, const Options& options);

}  // namespace ingot::verify
