// One function per verb; each returns the exit status (0 done, 1 failed, 2 wrong usage, 3 a verification was missed).
#pragma once

#include <functional>

#include "checkpoint/storage/storage.h"
#include "cli/options.h"

namespace ingot::cli {

// In the front program, free of torch.
int run_data(const Options& options);
int run_report(const Options& options);
int run_bench_verdict(const Options& options);

// In both: buckets need the libraries of the other one, which take 9 ms to load.
using StorageOf = const checkpoint::Storage& (*)(const std::filesystem::path&);
int run_checkpoint(const Options& options, StorageOf storage_of);

// In libingot.so.
int run_train(const Options& options);
int run_generate(const Options& options);
int run_verify(const Options& options);
int run_export(const Options& options);
int run_import(const Options& options);
int run_bench(const Options& options);
int run_bench_storage(const Options& options);
int run_bench_iteration(const Options& options);
int run_bench_collectives(const Options& options);
int run_bench_parallel(const Options& options);
int run_plan(const Options& options);
int run_plan_errors(const Options& options);
int run_plan_trace(const Options& options);
int run_plan_size(const Options& options);
int run_plan_moe_width(const Options& options);
int run_doctor(const Options& options);
int run_launch(const Options& options);

/// Runs `verb` and turns what it throws into a message and an exit status.
int guarded(const std::function<int()>& verb);

}  // namespace ingot::cli
