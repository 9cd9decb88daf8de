// The way into libingot.so for the front program.
#include "base/environment.h"
#include "base/error.h"
#include "base/process.h"
#include "cli/remote_files.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "kernels/cpu_memory.h"
#include "plan/trace/trace_store.h"

namespace ingot::cli {

#define INGOT_RUN(name) int run_##name(const Call&);
INGOT_TORCH_VERBS(INGOT_RUN)
#undef INGOT_RUN
int run_checkpoint(const Call&);
int run_data(const Call&);

}  // namespace ingot::cli

extern "C" __attribute__((visibility("default"))) int ingot_run(const ingot::cli::Call& call) {
  using namespace ingot::cli;
  ingot::base::keep_freed_memory();
  return guarded([&] {
    ingot::kernels::use_page_pool();
    ingot::plan::keep_traces(ingot::base::environment().cache_folder());
    open_urls();
#define INGOT_RUN(name) \
  if (call.verb == #name) return run_##name(call);
    INGOT_TORCH_VERBS(INGOT_RUN)
#undef INGOT_RUN
    if (call.verb == "checkpoint") return run_checkpoint(call);
    if (call.verb == "data") return run_data(call);
    throw ingot::base::Error("libingot.so has no verb " + call.verb + ": it is of another build than the program");
  });
}
