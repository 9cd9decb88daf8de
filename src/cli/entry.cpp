// The way into libingot.so for the front program.
#include "base/process.h"
#include "cli/verbs.h"
#include "kernels/cpu_memory.h"
#include "object_store/object_storage.h"

extern "C" __attribute__((visibility("default"))) int ingot_run(const ingot::cli::Options& options) {
  using namespace ingot::cli;
  ingot::base::keep_freed_memory();
  return guarded([&] {
    ingot::kernels::use_page_pool();
    if (options.verb == "train") return run_train(options);
    if (options.verb == "generate") return run_generate(options);
    if (options.verb == "verify") return run_verify(options);
    if (options.verb == "checkpoint") {
      const auto& action = options.checkpoint.action;
      return action == "export-hf"   ? run_export(options)
             : action == "import-hf" ? run_import(options)
                                     : run_checkpoint(options, ingot::object_store::storage_of);
    }
    if (options.verb == "bench" && options.bench.kind == "collectives") return run_bench_collectives(options);
    if (options.verb == "bench" && options.bench.kind == "storage") return run_bench_storage(options);
    if (options.verb == "bench" && options.bench.kind == "iteration") return run_bench_iteration(options);
    if (options.verb == "bench") return options.bench.kind == "parallel" ? run_bench_parallel(options) : run_bench(options);
    if (options.verb == "plan" && options.plan.action == "errors") return run_plan_errors(options);
    if (options.verb == "plan" && options.plan.action == "trace") return run_plan_trace(options);
    if (options.verb == "plan" && options.plan.action == "size") return run_plan_size(options);
    if (options.verb == "plan" && options.plan.action == "moe-width") return run_plan_moe_width(options);
    if (options.verb == "plan") return run_plan(options);
    if (options.verb == "launch") return run_launch(options);
    return run_doctor(options);
  });
}
