#include "comm/nccl_backend.h"

#include "base/error.h"
#include "device/gpu_library.h"

namespace ingot::comm {

std::unique_ptr<Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, const std::vector<int>& members,
                                           std::chrono::duration<double> timeout) {
  if (const auto make = device::gpu_function<MakeNcclBackend>("ingot_make_nccl_backend"))
    return std::unique_ptr<Backend>(make(store, rank, members, timeout));
  const auto& problem = device::gpu_library().problem;
  throw base::CommError("several GPUs communicate by NCCL, which is not here: {}",
                        problem.empty() ? "this machine has no driver of NVIDIA's or AMD's" : problem);
}

}  // namespace ingot::comm
