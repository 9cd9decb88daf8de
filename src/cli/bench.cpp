// `ingot bench gemm|memory|attention|all`: what this machine can do, as a machine profile.
#include "cli/judge_flags.h"
#include "cli/verb.h"

namespace ingot::cli {

struct BenchOptions {
  std::string output, dtype = "all", as_rank;
  int rank_rounds = 1;
  bool quick = false, libraries = false, is_judged = false;
  // Of gemm, attention and memory: lists of counts, such as 4K; empty ones: the usual.
  std::vector<std::string> m, n, k, kinds, passes, groups;
  std::vector<double> imbalance;
  std::vector<std::string> seq, head_counts, kv_head_counts, head_dims, windows, batches, sizes;
  // Of all.
  std::vector<int> side_by_side;
  JudgeFlags judge;
};

#ifndef INGOT_COMPUTES
namespace {

// Lists of sizes; all combinations are measured.
void add_sweep(CLI::App& verb, BenchOptions& o) {
  const auto list = [&](const char* flag, auto& values, const char* text) { verb.add_option(flag, values, text)->delimiter(','); };
  if (verb.get_name() == "gemm") {
    list("--m", o.m, "rows of a linear layer, such as 64,1K (K = 1024); with any of these flags only their combinations are measured");
    list("--n", o.n, "its outputs");
    list("--k", o.k, "its inputs");
    list("--kinds", o.kinds, "plain, batched (many GEMMs in one call), grouped (of experts, whose rows are --m on average)");
    list("--passes", o.passes, "forward, grad_input, grad_weight (default: all)");
    list("--groups", o.groups, "how many GEMMs of batched ones, or experts of grouped ones (default 8)");
    list("--imbalance", o.imbalance, "load imbalance: rows of the largest expert over their mean; 1: all have as many (default)");
    verb.add_flag("--libraries", o.libraries,
                  "plain GEMMs through every library that can multiply here, by turns; kept for runs, which take the one that is "
                  "clearly faster (train.gemm_backend)");
  } else if (verb.get_name() == "attention") {
    list("--seq", o.seq, "tokens of a sequence, such as 512,4K (K = 1024); with any of these flags only their combinations are measured");
    list("--heads", o.head_counts, "query heads (default 8)");
    list("--kv-heads", o.kv_head_counts, "key and value heads; those that do not divide the query heads are left out (default: as many)");
    list("--head-dim", o.head_dims, "width of a head (default 64)");
    list("--window", o.windows, "keys that a query sees at most; 0: all before it (default)");
    list("--batch", o.batches, "sequences at a time (default 1)");
  } else if (verb.get_name() == "memory") {
    list("--sizes", o.sizes, "bytes of one array, such as 64K,16M (K = 1024; default 16K to 256M)");
  }
}

}  // namespace

void add_bench(Flags& flags) {
  const auto values = std::make_shared<BenchOptions>();
  auto& o = *values;
  flags.group("bench",
              "measure this machine: gemm, memory, attention, kernels, storage, or all; a training step: iteration; or ranks: collectives, "
              "and ways "
              "of spreading a layer over them, parallel");
  const auto add = [&](const char* name, const char* help) -> CLI::App& {
    auto& verb = flags.verb("bench", name, help, values);
    add_output(verb, o.output, "write the machine profile here (JSON)");
    verb.add_option("--dtype", o.dtype, "fp32, bf16 or all")->check(CLI::IsMember({"fp32", "bf16", "all"}));
    verb.add_flag("--quick", o.quick, "a few sizes only: seconds; all in two minutes");
    add_sweep(verb, o);
    return verb;
  };
  add("gemm", "GEMMs over shapes and dtypes: plain, batched and grouped");
  add("memory", "copy, scale, add, triad, dot, read and write over sizes; beside a GPU its host, and copies between the two");
  add("attention", "forward and backward over lengths, and where it turns from memory- to compute-bound");
  add("kernels", "each operator at its largest size, beside the rate of memory and the fastest GEMM");
  auto& all = add("all", "everything, as a machine profile");
  all.add_option("--ranks", o.side_by_side,
                 "measure so many ranks side by side, too, and their collectives, at a few sizes; 1: none (default: 2, 4 and 8, as far as "
                 "the cores go)")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  all.add_option("--as-rank", o.as_rank)->group("");
  all.add_option("--rank-rounds", o.rank_rounds)->check(CLI::Range(1, 99))->group("");
  add_judgement(all, o.judge);
  all.add_flag("--check", o.is_judged,
               "judge this node: by the floors of its device, or by its own earlier profile; status 3 when it fails");
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/counts.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "bench/machine_profile.h"
#include "bench/rounds.h"
#include "bench/storage.h"
#include "bench/suite.h"
#include "cli/show.h"
#include "device/device.h"
#include "health/node_measurements.h"
#include "kernels/gemm_tuning.h"

namespace ingot::cli {
namespace {

std::string command_line(const Call& call) {
  const auto& o = call.options<BenchOptions>();
  auto line = "ingot bench " + call.action + (o.dtype == "all" ? "" : " --dtype " + o.dtype) + (o.quick ? " --quick" : "");
  const std::pair<const char*, const std::vector<std::string>&> lists[] = {{"--m", o.m},
                                                                           {"--n", o.n},
                                                                           {"--k", o.k},
                                                                           {"--kinds", o.kinds},
                                                                           {"--passes", o.passes},
                                                                           {"--groups", o.groups},
                                                                           {"--seq", o.seq},
                                                                           {"--heads", o.head_counts},
                                                                           {"--kv-heads", o.kv_head_counts},
                                                                           {"--head-dim", o.head_dims},
                                                                           {"--window", o.windows},
                                                                           {"--batch", o.batches},
                                                                           {"--sizes", o.sizes}};
  for (const auto& [flag, values] : lists)
    if (!values.empty()) line += fmt::format(" {} {}", flag, base::join(values, ","));
  if (o.libraries) line += " --libraries";
  return o.imbalance.empty() ? line : line + fmt::format(" --imbalance {:g}", fmt::join(o.imbalance, ","));
}

void add_sweeps(const BenchOptions& o, bench::SuiteOptions& suite) {
  constexpr const char* kSizes = "whole numbers, such as 64,512,4K (K = 1024)";
  suite.gemm_sweep = {.m = base::counts_from("--m", o.m, kSizes),
                      .n = base::counts_from("--n", o.n, kSizes),
                      .k = base::counts_from("--k", o.k, kSizes),
                      .kinds = o.kinds,
                      .passes = o.passes,
                      .groups = base::counts_from("--groups", o.groups, kSizes),
                      .imbalance = o.imbalance};
  suite.attention_sweep = {.seq = base::counts_from("--seq", o.seq, kSizes),
                           .heads = base::counts_from("--heads", o.head_counts, kSizes),
                           .kv_heads = base::counts_from("--kv-heads", o.kv_head_counts, kSizes),
                           .head_dims = base::counts_from("--head-dim", o.head_dims, kSizes),
                           .windows = base::counts_from("--window", o.windows, kSizes, 0),
                           .batches = base::counts_from("--batch", o.batches, kSizes)};
  suite.libraries = o.libraries;
  const bool is_plain = o.groups.empty() && o.imbalance.empty() && (o.kinds.empty() || o.kinds == std::vector<std::string>{"plain"});
  if (o.libraries && !is_plain) throw base::UsageError("--libraries is of plain GEMMs; leave out --groups, --imbalance and other --kinds");
  suite.memory_bytes = base::counts_from("--sizes", o.sizes, "bytes of one array, such as 64K,16M (K = 1024)", 4);
}

std::vector<std::string> dtypes_of(const BenchOptions& o) {
  return o.dtype == "all" ? std::vector<std::string>{"fp32", "bf16"} : std::vector{o.dtype};
}

// Where the result goes: the file that was asked for, and the cache, which holds whole profiles only.
std::vector<std::filesystem::path> destinations(const Call& call, const plan::MachineProfile& profile, bool for_cache) {
  const auto& o = call.options<BenchOptions>();
  std::vector<std::filesystem::path> paths;
  if (!o.output.empty()) paths.emplace_back(o.output);
  const bool whole = for_cache && call.action == "all" && o.dtype == "all";
  const auto cache = base::environment().cache_folder();
  if (whole && !cache.empty()) paths.push_back(plan::profile_path(cache, profile));
  return paths;
}

// The profile, with what follows from it.
nlohmann::ordered_json document_of(const plan::MachineProfile& profile, const std::optional<health::HealthCheck>& verdict) {
  auto json = nlohmann::ordered_json::parse(profile.to_json());
  if (auto balance = bench::balance_json(profile); !balance.empty()) json["balance"] = std::move(balance);
  if (verdict) json["verdict"] = verdict->to_json();
  return json;
}

}  // namespace

int run_bench(const Call& call) {
  const auto& o = call.options<BenchOptions>();
  const auto ranks = comm::rank_environment(base::environment());
  if (!o.as_rank.empty()) return bench::measure_as_rank(o.as_rank, dtypes_of(o), ranks, o.rank_rounds), 0;
  const bool everything = call.action == "all";
  bench::SuiteOptions suite{.gemm = everything || call.action == "gemm",
                            .memory = everything || call.action == "memory",
                            .attention = everything || call.action == "attention",
                            .kernels = everything || call.action == "kernels",
                            .largest = call.action == "kernels",
                            .quick = o.quick,
                            .device = device::device_named("auto").str()};
  const bool is_on_cpu = suite.device == "cpu";
  suite.rounds = is_on_cpu && !o.quick && !o.libraries ? bench::kRounds : 1;  // a race of libraries has turns of its own
  suite.dtypes = dtypes_of(o);
  suite.groups = true;
  suite.balance = call.action == "attention";
  add_sweeps(o, suite);
  auto profile = plan::describe_machine(at::get_num_threads(), 1, suite.device);
  profile.quick = o.quick;
  profile.commands = {command_line(call)};
  const auto cache = base::environment().cache_folder();
  if (const at::Device device(suite.device); device.is_cuda())
    kernels::keep_gemm_choices(device, {}, kernels::gemm_choices_file(cache, device), /*writes_shared=*/true);

  // Known before minutes are spent on measuring.
  std::optional<health::Judge> judge;
  if (everything && (o.is_judged || o.judge.is_asked()))
    judge = health::judge_of(o.judge.request(), profile, cache.empty() ? std::filesystem::path() : plan::profile_path(cache, profile));

  const resilience::StopSignal stop("\nstopping after this measurement; what was measured is kept\n");
  const bench::RoundsOptions rounds{.rounds = suite.rounds,
                                    .steps_dtype = everything && !judge && is_on_cpu && ranks.size == 1 ? o.dtype : ""};
  const auto measurements = bench::measurements_of(suite);
  if (call.action == "memory" && is_on_cpu)
    base::log_info("there is no GPU here that this build can use: copies between host and device are left out");
  const bool measured_all = bench::measure_rounds("bench " + call.action, measurements, rounds, stop, profile);
  if (everything && measured_all && !judge) profile.storage = bench::storage_rates(".");
  bool complete = measured_all && stop.received() == 0;

  std::optional<health::HealthCheck> verdict;
  if (judge && complete) {
    const auto transfers = health::measure_for_verdict(at::Device(suite.device), profile);
    verdict = judge->judge(profile, transfers);
  }
  const bool passes = !verdict || verdict->passes();
  show(call, document_of(profile, verdict), bench::tables(profile) + (verdict ? "\n" + verdict->table() : ""));
  if (verdict && !o.judge.folder.empty()) health::write_check(o.judge.folder, *verdict);
  // What a check measured must not become what the next one judges by: a slow decline would lower its own floor.
  if (o.libraries && complete) bench::keep_libraries(profile);
  if (everything && !cache.empty())
    if (const auto old = plan::cached_profile(profile, cache)) profile = bench::replaced_by(profile, *old);
  for (const auto& path : destinations(call, profile, measured_all && !judge)) {
    plan::write_profile(path, profile);
    base::log_info("wrote {}", path.string());
  }
  if (complete && everything && !judge && !cache.empty() && ranks.size == 1)
    for (const int count : o.side_by_side.empty() ? bench::numbers_of_ranks(suite.device) : o.side_by_side)
      if (count > 1 && stop.received() == 0) complete = bench::measure_side_by_side(o.dtype, count, suite.rounds, stop) && complete;
  if (!measured_all) base::log_warning("stopped before all was measured: the cache keeps what it had");
  return !complete ? 1 : passes ? 0 : 3;
}

}  // namespace ingot::cli
#endif
