#include "train/replica_check.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/process.h"
#include "base/work_scope.h"
#include "kernels/digest.h"

namespace ingot::train {

using layers::Parameter;
using mesh::Axis;

namespace {

// "ranks 0, 1 and 3"
std::string text_of(const std::vector<int>& ranks) {
  constexpr size_t kMost = 8;
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  if (ranks.size() > kMost)
    return fmt::format("ranks {} and {} more", fmt::join(ranks.begin(), ranks.begin() + kMost, ", "), ranks.size() - kMost);
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

}  // namespace

ReplicaCheck::ReplicaCheck(models::Model& model, const optim::Optimizer& optimizer, parallel::Buckets& buckets,
                           const mesh::ParallelConfig& config, mesh::Groups& groups)
    : model_(model), optimizer_(optimizer), buckets_(buckets), config_(config), groups_(groups) {
  for (size_t kind = 0; kind < kKinds; ++kind) holders_[kind] = holders(groups.mesh(), static_cast<Copies>(kind));
  for (const auto& p : model.parameters().all())
    if (const auto kind = kind_of(*p); holders_[kind].size() > 1 && buckets.keeps(*p)) weights_.push_back({p.get(), kind});
}

ReplicaCheck::Copies ReplicaCheck::kind_of(const Parameter& p) const {
  if (p.is_expert) return expert;
  const bool at_ends = model_.layout().stage.is_on() && p.is_at_both_ends;
  return p.part.empty() ? (at_ends ? whole_at_ends : whole) : (at_ends ? cut_at_ends : cut);
}

std::vector<int> ReplicaCheck::holders(const mesh::Mesh& mesh, Copies kind) {
  if (kind == expert) return mesh.members({Axis::expert_data});
  std::vector axes = {Axis::data, Axis::context};
  if (kind == whole || kind == whole_at_ends) axes.push_back(mesh.weight_axis());
  if (kind == whole || kind == cut) return mesh.members(axes);
  axes.push_back(Axis::pipeline);
  const auto ends = mesh.members_at_ends(axes);
  return std::find(ends.begin(), ends.end(), mesh.rank()) != ends.end() ? ends : std::vector<int>{};
}

at::Tensor ReplicaCheck::digest_of_weights() {
  buckets_.complete_values();
  std::vector<at::Tensor> values;
  for (const auto& weight : weights_) values.push_back(weight.parameter->value.detach());
  return kernels::digest(values);
}

void ReplicaCheck::before_update() {
  const base::WorkScope scope("check_replicas", base::WorkKind::elementwise);
  before_ = digest_of_weights();
}

ReplicaCheck::Entries ReplicaCheck::look() {
  std::vector<at::Tensor> parts;
  std::vector<std::pair<Weight, Seen>> order;
  const auto add = [&](const at::Tensor& digests, Seen seen) {
    if (weights_.empty() || !digests.defined()) return;
    parts.push_back(digests);
    for (const auto& weight : weights_) order.emplace_back(weight, seen);
  };
  add(std::exchange(before_, at::Tensor()), Seen::before_update);
  add(digest_of_weights(), Seen::after_update);
  std::vector<at::Tensor> masters;
  // With ZeRO nobody else has them.
  if (config_.zero == 0)
    for (const auto& [parameter, master] : optimizer_.masters())
      if (const auto kind = kind_of(*parameter); holders_[kind].size() > 1) {
        masters.push_back(master);
        order.emplace_back(Weight{parameter, kind}, Seen::master);
      }
  if (!masters.empty() && masters.front().device() == model_.device()) parts.push_back(kernels::digest(std::exchange(masters, {})));
  std::vector<at::Tensor> on_host;
  if (!parts.empty()) on_host.push_back(device::cat(parts).cpu());
  if (!masters.empty()) on_host.push_back(kernels::digest(masters));  // that wait in the host's memory
  const auto host = on_host.empty() ? at::Tensor() : device::cat(on_host);
  Entries entries;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto* const sums = host.const_data_ptr<int64_t>() + 2 * i;
    const auto& [weight, seen] = order[i];
    entries[weight.kind].push_back({weight.parameter, seen, {sums[0], sums[1]}});
  }
  return entries;
}

std::vector<ReplicaCheck::Digest> ReplicaCheck::gather(const std::vector<Digest>& own) const {
  auto& everyone = groups_.world().everyone();
  const auto numbers = static_cast<int64_t>(2 * own.size());
  const auto mine = at::empty({numbers}, at::kLong), all = at::empty({everyone.size() * numbers}, at::kLong);
  std::memcpy(mine.data_ptr(), own.data(), mine.nbytes());
  everyone.all_gather(all, mine);
  std::vector<Digest> of_all(own.size() * static_cast<size_t>(everyone.size()));
  std::memcpy(of_all.data(), all.const_data_ptr(), all.nbytes());
  return of_all;
}

ReplicaCheck::Digest ReplicaCheck::combined(const std::vector<Entry>& entries, size_t count) {
  const auto numbers = at::empty({static_cast<int64_t>(count), 2}, at::kLong);
  for (size_t i = 0; i < count; ++i) std::memcpy(numbers.data_ptr<int64_t>() + 2 * i, entries[i].digest.data(), sizeof(Digest));
  const auto sums = kernels::digest({numbers});
  return {sums.const_data_ptr<int64_t>()[0], sums.const_data_ptr<int64_t>()[1]};
}

void ReplicaCheck::compare(int64_t step) {
  const base::WorkScope scope("check_replicas", base::WorkKind::elementwise);
  const at::NoGradGuard no_grad;
  const auto entries = look();
  auto& everyone = groups_.world().everyone();
  std::vector<Digest> own;
  for (const auto& of_kind : entries) own.push_back(combined(of_kind, of_kind.size()));
  const auto all = gather(own);
  const auto differs = [&](size_t kind) {
    return std::any_of(holders_[kind].begin(), holders_[kind].end(),
                       [&](int rank) { return all[static_cast<size_t>(rank) * kKinds + kind] != own[kind]; });
  };
  size_t kind = 0;
  while (kind < kKinds && !differs(kind)) ++kind;
  // Of the ranks that see a difference the first leads.
  const auto lead = at::full({1}, kind < kKinds ? everyone.rank() : everyone.size(), at::kLong);
  everyone.all_reduce(lead, comm::Reduction::min);
  if (lead.item<int64_t>() < everyone.size()) fail(step, lead.item<int>(), static_cast<Copies>(kind), entries);
  agreed_ = step;
}

// Finds the first of the lead's weights that differs by halving, so that ranks send little however many weights and ranks there are.
void ReplicaCheck::fail(int64_t step, int lead, Copies of_lead, const Entries& entries) const {
  auto& everyone = groups_.world().everyone();
  const bool is_lead = everyone.rank() == lead;
  const auto facts = at::full({2}, static_cast<int64_t>(of_lead), at::kLong);
  if (is_lead) facts[1] = static_cast<int64_t>(entries[of_lead].size());
  everyone.broadcast(facts, lead);
  const auto kind = static_cast<Copies>(facts[0].item<int64_t>());
  const auto members = holders(mesh::Mesh(config_, lead, everyone.size()), kind);
  const auto& own = entries[kind];
  const auto first_of = [&](size_t count) { return combined(own, std::min(count, own.size())); };
  size_t same = 0, different = static_cast<size_t>(facts[1].item<int64_t>());
  while (different - same > 1) {
    const size_t middle = (same + different) / 2;
    const auto all = gather({first_of(middle)});
    const auto& of_lead_rank = all[static_cast<size_t>(lead)];
    const bool agree =
        std::all_of(members.begin(), members.end(), [&](int rank) { return all[static_cast<size_t>(rank)] == of_lead_rank; });
    (agree ? same : different) = middle;
  }
  const auto of_ranks = gather({different <= own.size() ? own[different - 1].digest : Digest{}});
  const auto hosts = comm::gather_texts(everyone, base::host_name(), lead);
  const auto text = is_lead ? describe(step, own[different - 1], members, of_ranks, hosts) : std::string();
  throw base::ReplicaError("{}", comm::broadcast_text(everyone, text, lead));
}

std::string ReplicaCheck::describe(int64_t step, const Entry& entry, const std::vector<int>& members, const std::vector<Digest>& of_ranks,
                                   const std::vector<std::string>& hosts) const {
  // The largest group of ranks that agree first.
  std::vector<std::pair<Digest, std::vector<int>>> groups;
  for (const int rank : members) {
    const auto& digest = of_ranks[static_cast<size_t>(rank)];
    auto found = std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == digest; });
    if (found == groups.end()) found = groups.insert(groups.end(), {digest, {}});
    found->second.push_back(rank);
  }
  std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  std::vector<std::string> holdings, odd;
  for (const auto& [digest, ranks] : groups)
    holdings.push_back(
        fmt::format("{:016x}{:016x} on {}", static_cast<uint64_t>(digest[0]), static_cast<uint64_t>(digest[1]), text_of(ranks)));
  const bool has_majority = groups.size() > 1 && groups[0].second.size() > groups[1].second.size();
  for (size_t i = has_majority ? 1 : 0; i < groups.size(); ++i)
    for (const int rank : groups[i].second) odd.push_back(fmt::format("rank {} on {}", rank, hosts[static_cast<size_t>(rank)]));
  const char* const seen = entry.seen == Seen::before_update  ? "as the step's passes used it"
                           : entry.seen == Seen::after_update ? "after the step's update"
                                                              : "the fp32 master, after the step's update";
  const auto where = has_majority ? fmt::format("Most agree; against them stands {}: judge that node", fmt::join(odd, ", "))
                                  : fmt::format("No side has a majority: judge the nodes of {}", fmt::join(odd, ", "));
  const auto since =
      agreed_ > 0 ? fmt::format("Copies agreed after step {}: the run may go on from a checkpoint of that step or an earlier one", agreed_)
                  : std::string("This start has not compared them before: the run may go on from the checkpoint that it began with");
  return fmt::format(
      "step {}: ranks that hold the same weights differ, first in {} ({}), whose digests are {}. {} (ingot bench all --check) before it "
      "trains on. {}; later ones are removed.",
      step, entry.parameter->name, seen, fmt::join(holdings, ", "), where, since);
}

}  // namespace ingot::train
