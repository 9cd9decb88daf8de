#include "bench/suite.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "bench/collectives.h"
#include "bench/kernels.h"
#include "bench/library_race.h"
#include "bench/operations.h"
#include "device/device.h"
#include "kernels/cpu_memory.h"
#include "optim/newton_schulz.h"
#include "optim/operators.h"
#include "optim/optimizer.h"
#include "plan/disturbed.h"

namespace ingot::bench {
namespace {

using plan::MachineProfile;
using plan::Pass;

bool is_on_gpu(const SuiteOptions& o) { return device::is_gpu(at::Device(o.device)); }

// What GEMMs are measured on. Those of a GPU are large enough for its peak: an H200 reaches 437 TFLOP/s with 16 GFLOP and some 790 with
// 1,000.
struct GemmGrid {
  std::vector<int64_t> rows, sides;
  int64_t cube;  // of the first one, large enough for the peak
  double most_flops;
};

GemmGrid gemm_grid(const SuiteOptions& o) {
  if (is_on_gpu(o) && o.quick) return {{64, 1024, 8192}, {64, 256, 1024, 4096}, 4096, 3e11};
  if (is_on_gpu(o)) return {{64, 256, 1024, 4096, 16384}, {64, 128, 256, 512, 1024, 2048, 4096, 8192}, 8192, 2.5e12};
  if (o.quick) return {{64, 512, 2048}, {32, 64, 128, 256, 512, 1024}, 2048, 2e10};
  return {{16, 64, 256, 1024, 4096}, {16, 32, 64, 128, 256, 512, 1024, 2048, 4096}, 2048, 2e10};
}

Repeats repeats_of(const SuiteOptions& o) {
  if (o.hasty) return {1, 1, 10, 0.01, 0.03};
  if (o.quick) return {1, 2, 25, 0.02, 0.1};
  return {1, (2 + o.rounds) / o.rounds, 50, 0.1 / o.rounds, 1.0 / o.rounds};
}

Setting setting_of(const SuiteOptions& o) { return {o.dtypes, repeats_of(o), at::Device(o.device)}; }

void append(std::vector<Measurement>& all, std::vector<Measurement> more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

// Every second point of a grid over rows and both sides, as on a chess board: what lies between has measured neighbours on all sides.
void add_gemm(const SuiteOptions& o, const std::string& dtype, std::vector<Measurement>& all) {
  const auto [rows, sides, cube, most_flops] = gemm_grid(o);
  const auto add = [&, most = most_flops](Pass pass, int64_t m, int64_t n, int64_t k) {
    if (2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) > most) return;
    all.push_back({fmt::format("gemm {} {} {}x{}x{}", dtype, plan::name_of(pass), m, n, k),
                   [=, repeats = repeats_of(o), device = at::Device(o.device)](MachineProfile& profile) {
                     profile.gemm.push_back(measure_gemm(dtype, pass, m, n, k, repeats, device));
                   }});
  };
  add(Pass::forward, cube, cube, cube);
  for (size_t row = 0; row < rows.size(); ++row)
    for (size_t in = 0; in < sides.size(); ++in)
      for (size_t out = 0; out < sides.size(); ++out) {
        if ((row + in + out) % 2 != 0) continue;
        add(Pass::forward, rows[row], sides[out], sides[in]);
        add(Pass::grad_input, rows[row], sides[in], sides[out]);
        add(Pass::grad_weight, sides[out], sides[in], rows[row]);
      }
}

void add_attention(const SuiteOptions& o, const std::string& dtype, std::vector<Measurement>& all) {
  const std::vector<int64_t> lengths =
      o.quick ? std::vector<int64_t>{128, 512, 1024} : std::vector<int64_t>{64, 128, 256, 512, 1024, 2048, 4096};
  const std::vector<int64_t> head_dims = {32, 64, 128};
  // Work for every thread, or multiprocessor, at any length.
  const int64_t heads = is_on_gpu(o) ? 32 : 4, kv_heads = is_on_gpu(o) ? 8 : 2;
  const int64_t batch = is_on_gpu(o) ? 4 : std::max<int64_t>(1, (2 * at::get_num_threads() + heads - 1) / heads);
  for (const int64_t seq : lengths) {
    for (const int64_t head_dim : head_dims) {
      all.push_back({fmt::format("attention {} {}x{}", dtype, seq, head_dim),
                     [=, repeats = repeats_of(o), device = at::Device(o.device)](MachineProfile& profile) {
                       profile.attention.push_back(measure_attention(dtype, batch, seq, heads, kv_heads, head_dim, repeats, device));
                     }});
    }
  }
}

void add_memory(const SuiteOptions& o, std::vector<Measurement>& all) {
  const std::vector<int64_t> usual = o.quick ? std::vector<int64_t>{1 << 16, 1 << 20, 1 << 23, 1 << 26}
                                             : std::vector<int64_t>{1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28};
  append(all, memory_measurements(o.memory_bytes.empty() ? usual : o.memory_bytes, setting_of(o)));
}

void add_kernels(const SuiteOptions& o, const std::string& dtype, std::vector<Measurement>& all) {
  for (const auto& op : optim::operators()) {
    if (!op.measured) continue;
    auto sizes = op.measured(o.quick);
    if (o.largest) sizes = {sizes.back()};
    for (const auto& [rows, width] : sizes)
      all.push_back({fmt::format("{} {} {}x{}", op.name, dtype, rows, width),
                     [=, name = std::string(op.name), r = rows, w = width, repeats = repeats_of(o), device = at::Device(o.device)](
                         MachineProfile& profile) { profile.kernels.push_back(measure_kernel(name, dtype, r, w, repeats, device)); }});
  }
}

// Muon's square matrices, by kernels of our own and by GEMMs alone.
void add_newton_schulz(const SuiteOptions& o, std::vector<Measurement>& all) {
  const at::Device device(o.device);
  const int64_t side = o.quick ? 128 : 2048, matrices = 4;
  const auto steps = optim::quintics_of(optim::OptimizerConfig{});
  const std::pair<const char*, optim::Iterates> forms[] = {{"newton_schulz", optim::iterates_in_bf16(device.is_cpu())},
                                                           {"newton_schulz_of_gemms", optim::Iterates::bf16}};
  for (const auto& [name, iterates] : forms)
    all.push_back({fmt::format("{} bf16 {}x{}", name, side, side),
                   [=, name = std::string(name), form = iterates, repeats = repeats_of(o)](MachineProfile& profile) {
                     std::vector<at::Tensor> gradients;
                     for (int64_t i = 0; i < matrices; ++i)
                       gradients.push_back(at::randn({side, side}, at::TensorOptions().device(device).dtype(at::kBFloat16)));
                     const double seconds = median_seconds(
                         [&] { optim::newton_schulz(gradients, steps, optim::Threads::share_matrices, form); }, repeats, device);
                     const auto of_one = optim::newton_schulz_flops(side, side, static_cast<int64_t>(steps.size()), form);
                     profile.kernels.push_back({.name = name,
                                                .dtype = "bf16",
                                                .rows = side,
                                                .width = side,
                                                .count = matrices,
                                                .forward_s = seconds,
                                                .forward_flops = of_one * static_cast<double>(matrices)});
                   }});
}

// Whether it is true on some rank; all begin what comes next at the same time.
bool any_of(const Company& company, bool own) {
  if (!company.world) return own;
  const auto flag = at::full({1}, own ? 1 : 0, at::kInt);
  company.world->everyone().all_reduce(flag, comm::Reduction::max);
  return flag.item<int>() != 0;
}

base::ProgressOutput silent() {
  return {[](std::string_view) {}, [] { return 0.0; }, false, 80, 1e9};
}

// Share of the machine that others use, watched for a tenth of a second.
double foreign_share_now() {
  const base::LoadWatch load;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  return load.foreign_share();
}

// What a busy machine gave is replaced when it is idle.
bool is_replaceable(const MachineProfile& profile) {
  return profile.foreign_load > plan::kBusyShare && foreign_share_now() < plan::kBusyShare;
}

bool is_complete(const MachineProfile& profile, const std::string& dtype, int64_t ranks) {
  return knows(profile, dtype) && (ranks == 1 || knows_collectives(profile, ranks));
}

// Processes that measure at the same time take each other's cores, and the last one to write would drop what the others kept. Called by
// all ranks, which ask each other again and again: none waits for long in one operation.
std::optional<base::FileLock> turn_to_measure(const std::filesystem::path& profile, const Company& company) {
  constexpr std::chrono::minutes kPatience(2);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::optional<base::FileLock> lock;
  const auto must_wait = [&] {
    if (!company.is_first()) return false;
    try {
      base::make_directories(profile.parent_path());
      lock = base::FileLock::try_take(profile.string() + ".lock");
    } catch (const base::Error& failure) {
      base::log_warning("{}; nothing keeps others from measuring meanwhile", failure.what());
      return false;
    }
    if (lock || std::chrono::steady_clock::now() < deadline) return !lock;
    base::log_warning("another ingot still measures this machine; this one measures, too, and rates come out too low");
    return false;
  };
  for (bool said = false; any_of(company, must_wait()); said = true) {
    if (!said && company.is_first())
      base::log_info("waiting for another ingot that measures this machine (for {} at most)",
                     base::format_duration(std::chrono::duration<double>(kPatience).count()));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return lock;
}

}  // namespace

std::vector<Measurement> measurements_of(const SuiteOptions& o) {
  std::vector<Measurement> all;
  if (o.kernels && o.largest) {
    append(all, balance_measurements(o.quick, setting_of(o)));
    all.push_back({"memory copy", [=](MachineProfile& profile) {
                     profile.memory.push_back(measure_memory("copy", profile.memory.back().bytes, repeats_of(o), at::Device(o.device)));
                   }});
    for (const auto& dtype : o.dtypes) add_kernels(o, dtype, all);
    if (std::find(o.dtypes.begin(), o.dtypes.end(), "bf16") != o.dtypes.end()) add_newton_schulz(o, all);
    return all;
  }
  if (o.attention && o.balance) append(all, balance_measurements(o.quick, setting_of(o)));
  if (o.gemm && o.libraries) append(all, library_measurements(o.gemm_sweep, o.quick, setting_of(o)));
  else if (o.gemm && o.gemm_sweep.is_given()) append(all, measurements_of(o.gemm_sweep, setting_of(o)));
  else if (o.gemm)
    for (const auto& dtype : o.dtypes) {
      add_gemm(o, dtype, all);
      if (o.groups) append(all, usual_groups(dtype, o.quick, setting_of(o)));
    }
  if (o.memory) add_memory(o, all);
  if (o.attention && o.attention_sweep.is_given()) append(all, measurements_of(o.attention_sweep, setting_of(o)));
  else if (o.attention)
    for (const auto& dtype : o.dtypes) add_attention(o, dtype, all);
  if (!o.kernels) return all;
  // Of a GPU, where it takes seconds; on a CPU it is ingot bench gemm --libraries that does.
  if (o.gemm && at::Device(o.device).is_cuda()) append(all, library_measurements({}, o.quick, setting_of(o)));
  for (const auto& dtype : o.dtypes) add_kernels(o, dtype, all);
  all.push_back({"a small operation", [device = at::Device(o.device)](MachineProfile& profile) {
                   profile.operation_s = measure_operation({2, 5, 20, 0.05, 0.5}, device);
                 }});
  return all;
}

bool knows(const MachineProfile& profile, const std::string& dtype) {
  const auto has = [&](const auto& entries) {
    return std::any_of(entries.begin(), entries.end(), [&](const auto& e) { return e.dtype == dtype; });
  };
  return has(profile.gemm) && has(profile.attention) && has(profile.kernels) && !profile.memory.empty();
}

bool knows_collectives(const MachineProfile& profile, int64_t ranks) {
  return std::any_of(profile.collectives.begin(), profile.collectives.end(), [&](const auto& e) { return e.ranks == ranks; });
}

double companions_cpu_seconds(const Company& company, double own_s) {
  if (!company.world) return 0;
  const auto all = at::empty({company.size()}, at::kDouble);
  company.world->everyone().all_gather(all, at::full({1}, own_s, at::kDouble));
  const int64_t first = company.world->rank() - company.local_rank;  // launchers number the ranks of a machine one after another
  return all.narrow(0, first, company.local_size).sum().item<double>() - own_s;
}

int64_t Company::side_by_side() const { return std::clamp<int64_t>(base::usable_cores() / at::get_num_threads(), 1, local_size); }

bool run_suite(const std::vector<Measurement>& measurements, MachineProfile& profile, base::ProgressBar& bar,
               const std::function<bool()>& is_stopped, const Company& company, int64_t before) {
  const base::LoadWatch load;
  size_t done = 0;
  while (done < measurements.size() && !any_of(company, is_stopped())) {
    bar.update(before + static_cast<int64_t>(done), measurements[done].label);
    if (company.measures()) measurements[done].run(profile);
    ++done;
  }
  profile.foreign_load = load.foreign_share(companions_cpu_seconds(company, load.own_cpu_s()));
  bar.update(before + static_cast<int64_t>(done));
  return done == measurements.size();
}

void warn_of_foreign_load(const MachineProfile& profile) {
  if (profile.foreign_load > plan::kBusyShare)
    base::log_warning(
        "other programs used {:.0f} % of this machine during the measurement; rates come out too low. Repeat it on an idle machine.",
        100 * profile.foreign_load);
}

void measure_collectives_of(const Company& company, bool quick, MachineProfile& profile) {
  CollectiveSweep sweep{.collectives = all_collectives()};
  sweep.min_bytes = 4 << 10;
  const bool is_cpu = profile.device == "cpu";
  // The rates of GPUs are published for buffers of 1 GiB.
  sweep.max_bytes = is_cpu ? (quick ? 4 << 20 : 32 << 20) : (quick ? 128 << 20 : 1 << 30);
  sweep.step_factor = quick ? 32 : 2;
  sweep.iterations = quick ? 5 : 20;
  sweep.warmup = quick ? 1 : 2;
  sweep.checks = false;
  // On one machine all places are alike.
  if (quick || company.size() <= company.local_size) sweep.placements = {Placement::neighbours};
  const auto device = is_cpu ? at::Device(at::kCPU) : device::device_of_rank("cuda", company.local_rank);
  std::optional<base::ProgressBar> bar;
  const auto results = measure_collectives(sweep, *company.world, device, [&](size_t done, size_t all, const std::string& next) {
    if (company.is_first() && !bar) bar.emplace("collectives", static_cast<int64_t>(all), base::ProgressUnit::count);
    if (bar) bar->update(static_cast<int64_t>(done), next);
    return true;
  });
  if (bar) bar->finish();
  std::erase_if(profile.collectives, [&](const auto& old) {
    return std::any_of(results.begin(), results.end(), [&](const auto& r) { return r.ranks == old.ranks && r.groups == old.groups; });
  });
  for (const auto& r : results)
    profile.collectives.push_back({name_of(r.collective), r.dtype, name_of(r.placement), r.ranks, r.groups, r.bytes, r.timing().mean_s});
}

MachineProfile replaced_by(MachineProfile fresh, const MachineProfile& old) {
  if (fresh.libraries.empty()) fresh.libraries = old.libraries;
  return fresh;
}

MachineProfile profile_for(const std::string& dtype, const std::string& device, const std::filesystem::path& cache_folder,
                           const Company& company) {
  const auto fresh = plan::describe_machine(at::get_num_threads(), company.side_by_side(), device);
  const auto kept_in = company.is_first() ? cache_folder : "";
  auto profile = plan::cached_profile(fresh, kept_in).value_or(fresh);
  const bool must_measure = !is_complete(profile, dtype, company.size()) || is_replaceable(profile);
  if (!must_measure && company.is_first() && profile.foreign_load > plan::kBusyShare)
    base::log_warning(
        "this machine was measured while other programs used {:.0f} % of it, and they still do: predictions come out too slow; 'ingot "
        "bench "
        "all' measures anew",
        100 * profile.foreign_load);
  std::optional<base::FileLock> turn;
  if (any_of(company, !kept_in.empty() && must_measure)) {
    turn = turn_to_measure(plan::profile_path(cache_folder, fresh), company);
    profile = plan::cached_profile(fresh, kept_in).value_or(fresh);  // by the one who had its turn before
    if (is_replaceable(profile)) profile = replaced_by(fresh, profile);
  }
  if (!complete(profile, dtype, company, /*hasty=*/company.size() > 1) || kept_in.empty()) return profile;
  try {
    plan::write_profile(plan::profile_path(kept_in, profile), profile);
  } catch (const base::Error& failure) {
    base::log_warning("the measurements are not kept: {}", failure.what());
  }
  return profile;
}

bool complete(MachineProfile& profile, const std::string& dtype, const Company& company, bool hasty) {
  const bool first = company.is_first();
  const bool needs_rates = any_of(company, first && !knows(profile, dtype));
  const bool needs_memory = any_of(company, first && profile.memory.empty());
  const bool needs_wide = any_of(company, first && dtype == "bf16" && profile.peak_gemm("fp32") == 0);  // routers stay in fp32
  const bool needs_collectives = company.size() > 1 && any_of(company, first && !knows_collectives(profile, company.size()));
  if (!needs_rates && !needs_collectives) return false;
  if (needs_rates) {
    const SuiteOptions options{.gemm = true,
                               .memory = needs_memory,
                               .attention = true,
                               .kernels = true,
                               .dtypes = {dtype},
                               .quick = true,
                               .hasty = hasty,
                               .device = profile.device};
    auto measurements = measurements_of(options);
    if (needs_wide) add_gemm({.quick = true, .hasty = hasty, .device = profile.device}, "fp32", measurements);
    base::ProgressBar bar("measure this machine", static_cast<int64_t>(measurements.size()), base::ProgressUnit::count,
                          first ? base::standard_progress_output() : silent());
    profile.quick = true;
    profile.commands.push_back("quick profile, " + dtype);
    run_suite(
        measurements, profile, bar, [] { return false; }, company);
    bar.finish();
    if (first) warn_of_foreign_load(profile);
  }
  if (needs_collectives) measure_collectives_of(company, hasty, profile);
  kernels::release_freed_memory();
  return true;
}

}  // namespace ingot::bench
