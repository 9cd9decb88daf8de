// Collectives of GPUs by NCCL (RCCL under ROCm, the same source) through c10d. The code is in libingot_cuda.so (gpu/nccl.cpp), which a
// machine with GPUs loads.
//
// Work is ordered on streams: wait() makes the current stream wait, not the host. A watchdog looks at what is under way; past the time-out
// it says who is missing and aborts the communicator, so that the host, too, comes back, and the next call on the group throws.
#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "comm/backend.h"

namespace ingot::comm {

/// All members must call it, each with its own GPU as the current device. Throws CommError, also where there is no libingot_cuda.so.
std::unique_ptr<Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, const std::vector<int>& members,
                                           std::chrono::duration<double> timeout);

/// What libingot_cuda.so has, as ingot_make_nccl_backend; the caller owns the result.
using MakeNcclBackend = Backend*(const c10::intrusive_ptr<c10d::Store>& store, int rank, const std::vector<int>& members,
                                 std::chrono::duration<double> timeout);

}  // namespace ingot::comm
