// What a node's verdict needs beyond a profile: a GEMM and copies that are large enough for the numbers published of GPUs.
#pragma once

#include "device/aten.h"
#include "health/health_check.h"
#include "plan/profile.h"

namespace ingot::health {

/// Adds a bf16 GEMM of 8192 x 8192 x 8192 to `profile` and copies 256 MiB between pinned memory and the device, both ways. Does
/// nothing for a CPU, whose profile says all that there is.
TransferRates measure_for_verdict(at::Device device, plan::MachineProfile& profile);

}  // namespace ingot::health
