#include "device/gpu_library.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "base/environment.h"

namespace ingot::device {
namespace {

namespace fs = std::filesystem;

struct Vendor {
  const char *name, *driver, *torch, *own;
};
constexpr Vendor kVendors[] = {{"nvidia", "/dev/nvidiactl", "libtorch_cuda.so", "libingot_cuda.so"},
                               {"amd", "/dev/kfd", "libtorch_hip.so", "libingot_hip.so"}};

// The folder of the library that has `symbol`.
fs::path folder_of(const void* symbol) {
  Dl_info info{};
  return dladdr(symbol, &info) != 0 && info.dli_fname ? fs::absolute(info.dli_fname).parent_path() : fs::path();
}

// Before the driver reads them; what the user has set stays.
void set_defaults() {
  // A queue for each stream: where streams share one, a receive that waits for its sender could hold back the kernels that the sender waits
  // for.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  // Blocks that grow: sizes change with every step's routing, and what cannot be used again would be lost.
  if (base::environment().cuda_alloc_conf.empty()) setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True", 0);
}

GpuLibrary load() {
  GpuLibrary found;
  for (const auto& vendor : kVendors) {
    if (!fs::exists(vendor.driver)) continue;
    found.vendor = vendor.name;
    set_defaults();
    // Beside the libtorch that is there already: another one's would not fit.
    const auto torch = folder_of(reinterpret_cast<const void*>(&at::globalContext)) / vendor.torch;
    if (!dlopen(torch.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
      found.problem = fmt::format("{}; set LD_LIBRARY_PATH to the lib folder of a torch 2.11 for GPUs", dlerror());
      return found;
    }
    found.has_torch = true;
    const auto own = folder_of(reinterpret_cast<const void*>(&load)) / vendor.own;
    // Lazily: the test program of a folder below comm/ has not all that NCCL's part calls.
    found.own = dlopen(own.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (!found.own) found.problem = fmt::format("{}; ./scripts/build --cuda builds it", dlerror());
    return found;
  }
  return found;
}

}  // namespace

const GpuLibrary& gpu_library() {
  static const GpuLibrary library = load();
  return library;
}

void* find_gpu_function(const char* name) {
  void* own = gpu_library().own;
  return own ? dlsym(own, name) : nullptr;
}

}  // namespace ingot::device
