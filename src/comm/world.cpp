#include "comm/world.h"

#include <ATen/Functions.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "comm/process_fabric.h"

namespace ingot::comm {

using base::CommError;

namespace {

// MKL 2024 chooses a vector function's kernel in the function's first call of a process; of threads that make this call at once, one may
// compute it with a kernel of low accuracy, that once (PyTorch issue 188792; attention in fp64 was off by 6e-10 in some 1 of 500
// processes). So the first calls are made by one thread, when the program is loaded.
[[maybe_unused]] const bool has_chosen_vector_kernels = [] {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const auto x = at::full({16}, 0.5, dtype);
    for (const auto function : {&at::exp, &at::expm1, &at::log, &at::log1p, &at::log2, &at::log10, &at::sqrt, &at::rsqrt, &at::sin,
                                &at::cos, &at::tan, &at::tanh, &at::erf, &at::erfc, &at::acos, &at::asin, &at::atan})
      function(x);
  }
  return true;
}();

}  // namespace

World::World() : ledger_(0) {}

World::World(int rank, int size, std::unique_ptr<Fabric> fabric) : rank_(rank), size_(size), fabric_(std::move(fabric)), ledger_(rank) {}

std::unique_ptr<World> World::join(const RankEnvironment& environment, bool is_gpu, const WorldOptions& options) {
  Heartbeat heartbeat(environment.heartbeats, environment.local_rank);  // seen while the ranks meet, too
  auto world = environment.size == 1
                   ? std::make_unique<World>()
                   : std::make_unique<World>(environment.rank, environment.size, make_process_fabric(environment, is_gpu, options));
  world->ledger_.show(std::move(heartbeat));
  return world;
}

std::string World::description() const { return fabric_ ? fmt::format("{} ranks, {}", size_, fabric_->description()) : "1 rank"; }

std::unique_ptr<Group> World::group(const std::string& axis, const std::vector<int>& members, bool in_background) {
  const auto self = std::find(members.begin(), members.end(), rank_);
  const std::set<int> distinct(members.begin(), members.end());
  const bool is_valid = !distinct.empty() && distinct.size() == members.size() && *distinct.begin() >= 0 && *distinct.rbegin() < size_;
  if (self == members.end() || !is_valid)
    throw CommError("rank {} cannot make the group {} of ranks {} in a world of {}", rank_, axis, members, size_);
  const int rank = static_cast<int>(self - members.begin());
  if (members.size() == 1) return std::make_unique<Group>(axis, members, 0, nullptr, counters_, ledger_);
  auto key = fmt::format("{}:{}", axis, fmt::join(members, ","));
  key += fmt::format("#{}", groups_made_[key]++);
  return std::make_unique<Group>(axis, members, rank, fabric_->connect(key, members, rank), counters_, ledger_, in_background);
}

Group& World::everyone() {
  if (!everyone_) {
    std::vector<int> all(static_cast<size_t>(size_));
    std::iota(all.begin(), all.end(), 0);
    everyone_ = group("world", all);
  }
  return *everyone_;
}

}  // namespace ingot::comm
