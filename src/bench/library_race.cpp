#include "bench/library_race.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "bench/operations.h"
#include "kernels/gemm_backend.h"
#include "layers/dtype.h"
#include "plan/gemm_backend_choice.h"

namespace ingot::bench {
namespace {

using plan::GemmBackendRate;
using plan::MachineProfile;

struct RestoreChoice {
  const kernels::GemmBackend before = kernels::gemm_backend();
  ~RestoreChoice() { kernels::use_gemm_backend(before); }
};

std::string choice_line(const MachineProfile& profile, const std::string& dtype) {
  const auto choice = plan::choose_library(profile, dtype, [&](const MachineProfile& one) { return plan::measured_seconds(one, dtype); });
  std::string text;
  for (const auto& time : choice.times)
    if (time.library != "default")
      text += fmt::format(
          "{} over all of these: {} takes {:.1f} % of the default's time ({:.3f} ms, middle half {:.3f} to {:.3f}; {:.3f}, {:.3f} to "
          "{:.3f})\n",
          dtype, time.library, 100 * time.seconds / choice.times.front().seconds, time.seconds * 1e3, time.short_s * 1e3, time.long_s * 1e3,
          choice.times.front().seconds * 1e3, choice.times.front().short_s * 1e3, choice.times.front().long_s * 1e3);
  if (choice.times.empty()) return text;
  return text + fmt::format("{}: {}\n", dtype,
                            choice.library == "default" ? "no other library is clearly faster"
                                                        : choice.library + " is clearly faster; of a run its own GEMMs decide");
}

}  // namespace

std::vector<GemmBackendRate> race_libraries(const std::string& dtype, plan::Pass pass, int64_t m, int64_t n, int64_t k, int rounds,
                                            at::Device device) {
  const auto libraries = kernels::gemm_backends(layers::precision_named(dtype).dtype, device);
  if (libraries.size() < 2) return {};
  const RestoreChoice restore;
  // Two calls at a time: the first brings the operands in.
  const Repeats twice{.warmup = 1, .least = 2, .most = 2, .enough_s = 0, .give_up_s = 0};
  std::vector<std::vector<double>> rates(libraries.size());
  for (int round = 0; round < rounds; ++round)
    for (size_t i = 0; i < libraries.size(); ++i) {
      kernels::use_gemm_backend(libraries[i]);
      rates[i].push_back(measure_gemm(dtype, pass, m, n, k, twice, device).flops_per_s);
    }
  std::vector<GemmBackendRate> out;
  for (size_t i = 0; i < libraries.size(); ++i) {
    auto& own = rates[i];
    std::sort(own.begin(), own.end());
    const size_t quarter = own.size() / 4;
    out.push_back(
        {dtype, kernels::name_of(libraries[i]), plan::name_of(pass), m, n, k, median(own), own[quarter], own[own.size() - 1 - quarter]});
  }
  return out;
}

std::vector<Measurement> library_measurements(const GemmSweep& sweep, bool quick, const Setting& setting) {
  const int rounds = quick ? 5 : 12;
  auto shapes = sweep;
  shapes.kinds = {"plain"};
  using Sizes = std::vector<int64_t>;
  const bool is_large = setting.device.is_cuda();
  if (shapes.m.empty()) shapes.m = is_large ? Sizes{4096, 16384} : quick ? Sizes{64, 512} : Sizes{64, 512, 2048};
  if (shapes.n.empty()) shapes.n = is_large ? Sizes{2048, 5632} : Sizes{512, 1536};
  if (shapes.k.empty()) shapes.k = is_large ? Sizes{2048} : Sizes{512, 1024};
  // The same list as of GEMMs, each of which is raced instead.
  return gemm_measurements(shapes, setting,
                           [rounds, device = setting.device](const plan::GemmRate& p, plan::Pass pass, MachineProfile& profile) {
                             const auto rates = race_libraries(p.dtype, pass, p.m, p.n, p.k, rounds, device);
                             profile.libraries.insert(profile.libraries.end(), rates.begin(), rates.end());
                           });
}

std::string library_tables(const MachineProfile& profile) {
  if (profile.libraries.empty()) return "";
  using Shape = std::tuple<std::string, std::string, int64_t, int64_t, int64_t>;
  std::vector<Shape> order;
  std::map<Shape, std::vector<const GemmBackendRate*>> shapes;
  for (const auto& e : profile.libraries) {
    auto& entries = shapes[{e.dtype, e.pass, e.m, e.n, e.k}];
    if (entries.empty()) order.emplace_back(e.dtype, e.pass, e.m, e.n, e.k);
    entries.push_back(&e);
  }
  std::string text = fmt::format("\n{:<6}{:<13}{:>7}{:>7}{:>7}  {}\n", "gemm", "pass", "m", "n", "k",
                                 "GFLOP/s by library, median (middle half); the fastest");
  std::set<std::string> dtypes;
  for (const auto& shape : order) {
    const auto& [dtype, pass, m, n, k] = shape;
    dtypes.insert(dtype);
    text += fmt::format("{:<6}{:<13}{:>7}{:>7}{:>7}  ", dtype, pass, m, n, k);
    const GemmBackendRate *best = nullptr, *usual = nullptr;
    for (const auto* e : shapes[shape]) {
      text +=
          fmt::format("{} {:.1f} ({:.1f}-{:.1f})  ", e->library, e->flops_per_s / 1e9, e->low_flops_per_s / 1e9, e->high_flops_per_s / 1e9);
      if (!best || e->flops_per_s > best->flops_per_s) best = e;
      if (e->library == "default") usual = e;
    }
    text += best == usual || !usual ? best->library + "\n"
                                    : fmt::format("{} {:+.0f} %\n", best->library, 100 * (best->flops_per_s / usual->flops_per_s - 1));
  }
  text += "\n";
  for (const auto& dtype : dtypes) text += choice_line(profile, dtype);
  return text;
}

}  // namespace ingot::bench
