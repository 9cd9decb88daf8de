#include "bench/rounds.h"

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "bench/stopwatch.h"

namespace ingot::bench {
namespace {

using plan::MachineProfile;

// What an entry is of, its times and rates left out.
auto subject(const plan::GemmRate& e) { return std::tie(e.dtype, e.kind, e.pass, e.m, e.n, e.k, e.groups, e.imbalance); }
auto subject(const plan::AttentionTime& e) { return std::tie(e.dtype, e.batch, e.seq, e.heads, e.kv_heads, e.head_dim, e.window); }
auto subject(const plan::MemoryRate& e) { return std::tie(e.operation, e.bytes); }
auto subject(const plan::KernelTime& e) { return std::tie(e.name, e.dtype, e.rows, e.width, e.count); }
auto subject(const plan::CollectiveTime& e) { return std::tie(e.operation, e.dtype, e.placement, e.ranks, e.groups, e.bytes); }
auto subject(const plan::WithinSteps& e) { return std::tie(e.dtype, e.kind); }

// The entries of all rounds that are of one thing; `at` is where the first round has it, and where the others most likely do.
template <class Entry>
std::vector<const Entry*> entries_of(const std::vector<MachineProfile>& rounds, std::vector<Entry> MachineProfile::*list, const Entry& one,
                                     size_t at) {
  std::vector<const Entry*> found;
  for (const auto& round : rounds) {
    const auto& entries = round.*list;
    const auto is_same = [&](const Entry& e) { return subject(e) == subject(one); };
    const auto e = at < entries.size() && is_same(entries[at]) ? entries.begin() + static_cast<std::ptrdiff_t>(at)
                                                               : std::find_if(entries.begin(), entries.end(), is_same);
    if (e != entries.end()) found.push_back(&*e);
  }
  return found;
}

template <class Entry, class... Figures>
void take_middle(const std::vector<MachineProfile>& rounds, std::vector<Entry> MachineProfile::*list, MachineProfile& into,
                 Figures... figures) {
  auto& entries = into.*list;
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto same = entries_of(rounds, list, (rounds.front().*list)[i], i);
    const auto middle = [&](double Entry::*figure) {
      std::vector<double> values;
      for (const auto* e : same) values.push_back(e->*figure);
      entries[i].*figure = median(std::move(values));
    };
    (middle(figures), ...);
  }
}

void take_middle_ratio(const std::vector<MachineProfile>& rounds, MachineProfile& into) {
  for (size_t i = 0; i < into.within_steps.size(); ++i) {
    auto& e = into.within_steps[i];
    if (e.predicted_s <= 0) continue;
    std::vector<double> ratios;
    for (const auto* round : entries_of(rounds, &MachineProfile::within_steps, rounds.front().within_steps[i], i))
      if (round->predicted_s > 0) ratios.push_back(round->measured_s / round->predicted_s);
    e.measured_s = median(std::move(ratios)) * e.predicted_s;
  }
}

}  // namespace

MachineProfile middle_of(const std::vector<MachineProfile>& rounds) {
  if (rounds.empty()) throw std::invalid_argument("no round of a profile");
  auto all = rounds.front();
  take_middle(rounds, &MachineProfile::gemm, all, &plan::GemmRate::flops_per_s);
  take_middle(rounds, &MachineProfile::attention, all, &plan::AttentionTime::forward_s, &plan::AttentionTime::backward_s);
  take_middle(rounds, &MachineProfile::memory, all, &plan::MemoryRate::bytes_per_s);
  take_middle(rounds, &MachineProfile::kernels, all, &plan::KernelTime::forward_s, &plan::KernelTime::backward_s);
  take_middle(rounds, &MachineProfile::collectives, all, &plan::CollectiveTime::seconds);
  take_middle(rounds, &MachineProfile::within_steps, all, &plan::WithinSteps::measured_s, &plan::WithinSteps::predicted_s);
  take_middle_ratio(rounds, all);
  std::vector<double> loads, operations;
  for (const auto& round : rounds) {
    loads.push_back(round.foreign_load);
    if (round.operation_s > 0) operations.push_back(round.operation_s);
  }
  all.foreign_load = median(std::move(loads));
  if (!operations.empty()) all.operation_s = median(std::move(operations));
  return all;
}

}  // namespace ingot::bench
