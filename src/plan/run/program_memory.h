// What a process takes of its device's memory besides the run's tensors.
#pragma once

#include "train/config.h"

namespace ingot::plan {

/// Of a process on a GPU: context, libraries' work areas, communication buffers. Judgement: about what CUDA, cuBLAS and NCCL take.
inline constexpr int64_t kGpuProgramBytes = int64_t{2} << 30;

/// Resident memory of this process with everything loaded that a run on a CPU needs: libraries, threads, their work areas, the planner.
/// Takes a step of a very small model, so call it before anything of the run is built, and after what else the process did. On a GPU the
/// above.
int64_t program_bytes(const train::RunConfig& config);

}  // namespace ingot::plan
