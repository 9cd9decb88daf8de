#include "plan/gemm_backend_choice.h"

#include <algorithm>

#include "plan/balance.h"

namespace ingot::plan {
namespace {

MachineProfile with_rates(const MachineProfile& profile, const std::string& dtype, const std::string& library,
                          double GemmBackendRate::*const rate) {
  auto one = profile;
  std::erase_if(one.gemm, [&](const auto& e) { return e.dtype == dtype; });
  for (const auto& e : profile.libraries)
    if (e.dtype == dtype && e.library == library) one.gemm.push_back({dtype, "plain", e.pass, e.m, e.n, e.k, e.*rate});
  return one;
}

}  // namespace

GemmBackendChoice choose_library(const MachineProfile& profile, const std::string& dtype, const GemmSeconds& seconds) {
  std::vector<std::string> names = {"default"};
  bool has_standard = false;
  for (const auto& e : profile.libraries) {
    if (e.dtype != dtype) continue;
    has_standard |= e.library == "default";
    if (std::find(names.begin(), names.end(), e.library) == names.end()) names.push_back(e.library);
  }
  GemmBackendChoice choice;
  if (!has_standard || names.size() < 2) return choice;
  for (const auto& name : names) {
    const auto by = [&](double GemmBackendRate::*const rate) { return seconds(with_rates(profile, dtype, name, rate)); };
    GemmBackendTime time{name, by(&GemmBackendRate::flops_per_s), by(&GemmBackendRate::high_flops_per_s),
                         by(&GemmBackendRate::low_flops_per_s)};
    if (!choice.times.empty()) time.gain = choice.times.front().seconds / time.seconds - 1;
    choice.times.push_back(std::move(time));
  }
  const auto& standard = choice.times.front();
  const auto& best =
      *std::min_element(choice.times.begin(), choice.times.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  if (best.gain > kWorthwhileGain && best.long_s < standard.short_s) choice.library = best.library;
  return choice;
}

double measured_seconds(const MachineProfile& profile, const std::string& dtype) {
  double seconds = 0;
  for (const auto& e : profile.gemm)
    if (e.dtype == dtype) seconds += flops_of(e) / e.flops_per_s;
  return seconds;
}

}  // namespace ingot::plan
