// The program. Parsing, help and every verb that needs no tensors happen here in milliseconds; libtorch, which takes
// half a second to load, comes in with libingot.so when a verb computes.
#include <dlfcn.h>

#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "cli/options.h"
#include "cli/verbs.h"

namespace {

using ingot::cli::Options;

int run_with_torch(const Options& options) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const auto path = (folder / "libingot.so").string();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library)
    throw ingot::base::Error(std::string("cannot load the computing part: ") + dlerror() +
                             "\nRun ./scripts/build again, or set LD_LIBRARY_PATH to the lib folder of a torch 2.11.");
  using Run = int (*)(const Options&);
  const auto run = reinterpret_cast<Run>(dlsym(library, "ingot_run"));
  if (!run) throw ingot::base::Error(path + " is not of this build: ingot_run is missing");
  return run(options);
}

// Models and buckets.
bool needs_library(const ingot::cli::CheckpointOptions& o) {
  const auto is_url = [](const std::string& path) { return path.starts_with("s3://"); };
  return o.action == "export-hf" || o.action == "import-hf" || is_url(o.path) || is_url(o.other);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (const auto status = ingot::cli::parse(argc, argv, options)) return *status;
  return ingot::cli::guarded([&] {
    if (options.verb == "data") return ingot::cli::run_data(options);
    if (options.verb == "report") return ingot::cli::run_report(options);
    if (options.verb == "bench" && options.bench.kind == "verdict") return ingot::cli::run_bench_verdict(options);
    if (options.verb == "checkpoint" && !needs_library(options.checkpoint))
      return ingot::cli::run_checkpoint(options, [](const auto&) -> const auto& { return ingot::checkpoint::local_storage(); });
    return run_with_torch(options);
  });
}
