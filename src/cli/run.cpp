// Runs what was parsed, here or in libingot.so.
#include <dlfcn.h>

#include <filesystem>

#include "base/error.h"
#include "cli/verb.h"
#include "cli/verbs.h"

namespace ingot::cli {

#define INGOT_RUN(name) int run_##name(const Call&);
INGOT_FRONT_VERBS(INGOT_RUN)
#undef INGOT_RUN

int run(const Call& call) {
#define INGOT_RUN(name) \
  if (call.verb == #name) return run_##name(call);
  INGOT_FRONT_VERBS(INGOT_RUN)
#undef INGOT_RUN
  return run_in_library(call);
}

int run_in_library(const Call& call) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const auto path = (folder / "libingot.so").string();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library)
    throw base::Error(std::string("cannot load the computing part: ") + dlerror() +
                      "\nRun ./scripts/build again, or set LD_LIBRARY_PATH to the lib folder of a torch 2.11.");
  using Run = int (*)(const Call&);
  const auto run = reinterpret_cast<Run>(dlsym(library, "ingot_run"));
  if (!run) throw base::Error(path + " is not of this build: ingot_run is missing");
  return run(call);
}

}  // namespace ingot::cli
