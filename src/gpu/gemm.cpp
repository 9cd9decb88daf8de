// GEMMs on the current stream of a device, by the names that kernels/gemm_tuning.cpp looks for.
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "gpu/library_gemm.h"

namespace {

using namespace ingot::kernels::gpu;

// Of each stream one, of the largest size at once: graphs keep the address.
void* workspace_of(const c10::Stream& stream) {
  static std::mutex mutex;
  static auto& workspaces = *new std::map<std::pair<c10::DeviceIndex, c10::StreamId>, at::Tensor>;  // beyond the driver's end
  const std::lock_guard lock(mutex);
  auto& workspace = workspaces[{stream.device_index(), stream.id()}];
  if (!workspace.defined())
    workspace = at::empty({static_cast<int64_t>(kMostGemmWorkspace)}, at::TensorOptions().dtype(at::kByte).device(stream.device()));
  return workspace.mutable_data_ptr();
}

}  // namespace

#define INGOT_EXPORTED extern "C" __attribute__((visibility("default")))

/// The library's name and version and the device's name, 0-terminated, cut to `size` bytes.
INGOT_EXPORTED void ingot_gemm_library(int device, char* text, int size) {
  cudaDeviceProp properties{};
  const bool is_known = cudaGetDeviceProperties(&properties, device) == cudaSuccess;
  const auto name = gemm_library() + " on " + (is_known ? properties.name : "an unknown device");
  std::strncpy(text, name.c_str(), static_cast<size_t>(size));
  text[size - 1] = 0;
}
INGOT_EXPORTED int ingot_gemm_algorithms(const LibraryGemm* gemm, int device, GemmAlgorithm* found, int most) {
  const c10::DeviceGuard guard(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
  return gemm_algorithms(*gemm, device, found, most);
}
INGOT_EXPORTED int ingot_gemm_is_able(const LibraryGemm* gemm, const GemmAlgorithm* algorithm, int device) {
  const c10::DeviceGuard guard(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
  return is_able(*gemm, *algorithm, device);
}
INGOT_EXPORTED int ingot_gemm(const LibraryGemm* gemm, const GemmAlgorithm* algorithm, int device) {
  const c10::Device on(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
  const c10::DeviceGuard guard(on);
  const auto stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(on);
  return run_gemm(*gemm, *algorithm, device, algorithm->workspace_bytes > 0 ? workspace_of(stream) : nullptr, stream.native_handle());
}
