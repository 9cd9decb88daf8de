#include "bench/collectives.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "bench/stopwatch.h"
#include "layers/dtype.h"
#include "plan/message_line.h"

namespace ingot::bench {
namespace {

using base::UsageError;

constexpr std::array kNames = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send_receive"};
constexpr size_t kMostSizes = 4096;
constexpr std::array kPlacements = {"neighbours", "strided"};

// Bytes are a total over ranks, each of which has 1 / ranks of them.
bool counts_total(Collective c) { return c == Collective::reduce_scatter || c == Collective::all_gather || c == Collective::all_to_all; }

// Values that every dtype holds exactly, at positions from `from` on.
template <class Value>
at::Tensor filled(int64_t count, int64_t from, at::ScalarType dtype, const Value& value) {
  auto out = at::empty({count}, dtype);
  constexpr int64_t kAtOnce = int64_t{1} << 20;  // positions are 64-bit numbers
  for (int64_t at = 0; at < count; at += kAtOnce) {
    const int64_t n = std::min(kAtOnce, count - at);
    out.narrow(0, at, n).copy_(value(at::arange(from + at, from + at + n, at::kLong)));
  }
  return out;
}

at::Tensor pattern(int64_t count, int64_t from, at::ScalarType dtype) {
  return filled(count, from, dtype, [](const at::Tensor& i) { return i.remainder(251); });
}

// Each position comes from one rank, and rank 0 adds 1: the sum over ranks is exact for any number of them.
at::Tensor summand(int64_t count, int rank, int ranks, at::ScalarType dtype) {
  return filled(count, 0, dtype, [=](const at::Tensor& i) {
    return (i + rank).remainder(ranks).eq(0).to(at::kLong) * i.remainder(7) + (rank == 0 ? 1 : 0);
  });
}
at::Tensor sum_of_ranks(int64_t count, int64_t from, at::ScalarType dtype) {
  return filled(count, from, dtype, [](const at::Tensor& i) { return i.remainder(7) + 1; });
}

// One collective of one size on this rank: buffers in several slots, which are used in turn as far as they fit into the largest
// size, so that small messages do not always find the same lines in the caches.
class Case {
 public:
  Case(Collective what, at::ScalarType dtype, at::Device device, int64_t count, int root, bool in_place, int64_t slots, comm::Group& group)
      : what_(what),
        count_(count),
        slots_(slots),
        root_(root),
        rank_(group.rank()),
        ranks_(group.size()),
        is_in_place_(in_place),
        group_(group),
        given_(make_given(dtype).to(device)),
        expected_(make_expected(dtype).to(device)) {
    input_ = at::empty({slots * given_.numel()}, given_.options());
    if (!uses_one_buffer()) output_ = at::empty({slots * expected_.numel()}, given_.options());
    for (int64_t slot = 0; slot < slots; ++slot) reset(slot);
  }

  void run(int64_t slot) {
    const auto in = input(slot), out = output(slot);
    switch (what_) {
      case Collective::all_reduce: return group_.all_reduce(out);
      case Collective::reduce_scatter: return group_.reduce_scatter(out, in);
      case Collective::all_gather: return group_.all_gather(out, in);
      case Collective::broadcast: return group_.broadcast(out, root_);
      case Collective::reduce: return group_.reduce(out, root_);
      case Collective::all_to_all: return group_.all_to_all(out, in);
      case Collective::send_receive: {
        // The first message of two GPUs connects them and waits for both: neighbours take turns, so that each finds one that waits for it.
        const auto receive = [&] { return group_.start_receive(out, (rank_ + ranks_ - 1) % ranks_); };
        const auto send = [&] { return group_.start_send(in, (rank_ + 1) % ranks_); };
        auto first = rank_ % 2 == 0 ? receive() : send();
        (rank_ % 2 == 0 ? send() : receive()).wait();
        return first.wait();
      }
    }
  }

  /// Elements of a slot's result that are not what they must be, after one run from a fresh slot.
  int64_t wrong(int64_t slot) {
    if (what_ == Collective::reduce && rank_ != root_) return 0;
    return output(slot).ne(expected_).sum().item<int64_t>();
  }

  void reset(int64_t slot) {
    part(input_, given_.numel(), slot).copy_(given_);
    if (output_.defined()) part(output_, expected_.numel(), slot).fill_(-1);
  }

 private:
  static at::Tensor part(const at::Tensor& all, int64_t size, int64_t slot) { return all.narrow(0, slot * size, size); }

  // Where the group's operation works in place, or the caller asked for it.
  bool uses_one_buffer() const {
    return is_in_place_ || what_ == Collective::all_reduce || what_ == Collective::broadcast || what_ == Collective::reduce;
  }
  at::Tensor input(int64_t slot) const {
    const auto whole = part(input_, given_.numel(), slot);
    return what_ == Collective::all_gather && is_in_place_ ? own_part(whole) : whole;
  }
  at::Tensor output(int64_t slot) const {
    if (!uses_one_buffer()) return part(output_, expected_.numel(), slot);
    const auto whole = part(input_, given_.numel(), slot);
    return what_ == Collective::reduce_scatter ? own_part(whole) : whole;
  }
  at::Tensor own_part(const at::Tensor& whole) const { return whole.narrow(0, rank_ * (count_ / ranks_), count_ / ranks_); }

  at::Tensor make_given(at::ScalarType dtype) const {
    const int64_t own = count_ / ranks_;
    switch (what_) {
      case Collective::all_reduce:
      case Collective::reduce:
      case Collective::reduce_scatter: return summand(count_, rank_, ranks_, dtype);
      case Collective::all_gather: {
        if (!is_in_place_) return pattern(own, rank_ * own, dtype);
        auto whole = at::full({count_}, -1, dtype);
        own_part(whole).copy_(pattern(own, rank_ * own, dtype));
        return whole;
      }
      case Collective::broadcast: return rank_ == root_ ? pattern(count_, 0, dtype) : at::full({count_}, -1, dtype);
      case Collective::all_to_all: return pattern(count_, 31 * rank_, dtype);
      case Collective::send_receive: return pattern(count_, 31 * rank_, dtype);
    }
    return {};
  }
  at::Tensor make_expected(at::ScalarType dtype) const {
    const int64_t own = count_ / ranks_;
    switch (what_) {
      case Collective::all_reduce:
      case Collective::reduce: return sum_of_ranks(count_, 0, dtype);
      case Collective::reduce_scatter: return sum_of_ranks(own, rank_ * own, dtype);
      case Collective::all_gather:
      case Collective::broadcast: return pattern(count_, 0, dtype);
      case Collective::all_to_all: {
        std::vector<at::Tensor> parts;
        for (int from = 0; from < ranks_; ++from) parts.push_back(pattern(own, 31 * from + rank_ * own, dtype));
        return device::cat(parts);
      }
      case Collective::send_receive: return pattern(count_, 31 * ((rank_ + ranks_ - 1) % ranks_), dtype);
    }
    return {};
  }

  Collective what_;
  int64_t count_, slots_;
  int root_, rank_, ranks_;
  bool is_in_place_;
  comm::Group& group_;
  at::Tensor given_, expected_, input_, output_;
};

double percentile(const std::vector<double>& sorted, double share) {
  return sorted[std::min(sorted.size() - 1, static_cast<size_t>(share * static_cast<double>(sorted.size())))];
}

// One number of each rank, reduced over all of them.
double over_ranks(comm::World& world, double own, RankTime how) {
  const auto all = at::empty({world.size()}, at::kDouble);
  world.everyone().all_gather(all, at::full({1}, own, at::kDouble));
  switch (how) {
    case RankTime::first: return all[0].item<double>();
    case RankTime::mean: return all.mean().item<double>();
    case RankTime::least: return all.min().item<double>();
    case RankTime::largest: break;
  }
  return all.max().item<double>();
}

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Calls one after another, and how long each took. A device is given all of them, for their mean as nccl-tests has it, and then waited for
// after each, which costs a small message more than it takes.
struct Calls {
  double mean_s = 0;
  std::vector<double> each_s;
};
Calls time_calls(int count, at::Device device, const std::function<void(int)>& call) {
  Calls calls;
  wait_for(device);
  const auto begin = Clock::now();
  for (int i = 0; i < count; ++i) {
    const auto before = Clock::now();
    call(i);
    if (device.is_cpu()) calls.each_s.push_back(seconds_since(before));
  }
  wait_for(device);
  calls.mean_s = seconds_since(begin) / count;
  for (int i = 0; !device.is_cpu() && i < count; ++i) {
    const auto before = Clock::now();
    call(i);
    wait_for(device);
    calls.each_s.push_back(seconds_since(before));
  }
  std::sort(calls.each_s.begin(), calls.each_s.end());
  return calls;
}

CollectiveTiming measure(const CollectiveSweep& sweep, const CollectiveResult& what, bool in_place, comm::World& world, at::Device device,
                         comm::Group& group) {
  const int64_t slots = std::clamp<int64_t>(sweep.max_bytes / std::max<int64_t>(what.bytes, 1), 1, 64);
  Case work(what.collective, layers::precision_named(what.dtype).dtype, device, what.count, sweep.root, in_place, slots, group);
  CollectiveTiming result;
  result.wrong = -1;
  if (sweep.checks) {
    work.run(0);
    result.wrong = work.wrong(0);
    work.reset(0);
  }
  for (int i = 0; i < sweep.warmup; ++i) work.run(i % slots);
  world.everyone().barrier();
  const auto calls = time_calls(sweep.iterations, device, [&](int i) { work.run((sweep.warmup + i) % slots); });
  result.mean_s = over_ranks(world, calls.mean_s, sweep.rank_time);
  result.min_s = over_ranks(world, calls.each_s.front(), RankTime::least);
  result.p50_s = over_ranks(world, percentile(calls.each_s, 0.5), RankTime::largest);
  result.p99_s = over_ranks(world, percentile(calls.each_s, 0.99), RankTime::largest);
  result.max_s = over_ranks(world, calls.each_s.back(), RankTime::largest);
  if (sweep.checks)
    result.wrong = static_cast<int64_t>(over_ranks(world, static_cast<double>(result.wrong), RankTime::mean) * world.size() + 0.5);
  return result;
}

bool has_out_of_place(Collective c) { return counts_total(c) || c == Collective::send_receive; }
bool has_in_place(Collective c) { return c != Collective::all_to_all && c != Collective::send_receive; }

void fit(CollectiveCurve& curve) {
  std::vector<plan::MessageTime> times;
  for (const auto& p : curve.points) times.push_back({static_cast<double>(p.bytes), p.timing().mean_s});
  const auto line = plan::fitted_line(times);
  curve.latency_s = line.latency_s;
  curve.bytes_per_s = line.bytes_per_s;
  curve.median_error = line.median_error;
  curve.largest_error = line.largest_error;
  curve.knee_bytes = static_cast<int64_t>(line.knee_bytes);
}

std::string columns_of(const CollectiveResult& r, const std::optional<CollectiveTiming>& t) {
  if (!t) return fmt::format("{:>10}{:>8}{:>8}{:>7}", "N/A", "N/A", "N/A", "N/A");
  return fmt::format("{:>10.2f}{:>8.2f}{:>8.2f}{:>7}", t->mean_s * 1e6, r.algorithm_bandwidth(*t) / 1e9, r.bus_bandwidth(*t) / 1e9,
                     t->wrong < 0 ? "N/A" : std::to_string(t->wrong));
}

std::string spread_of(const CollectiveTiming& t) {
  return fmt::format("{:>11.2f}{:>11.2f}{:>11.2f}{:>11.2f}", t.min_s * 1e6, t.p50_s * 1e6, t.p99_s * 1e6, t.max_s * 1e6);
}

const char* nccl_dtype(const std::string& dtype) { return dtype == "bf16" ? "bfloat16" : "float"; }

}  // namespace

const char* name_of(Collective collective) { return kNames[static_cast<size_t>(collective)]; }

Collective collective_from_name(const std::string& name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) throw UsageError("there is no collective {}; there are {}", name, fmt::join(kNames, ", "));
  return static_cast<Collective>(found - kNames.begin());
}

std::vector<Collective> all_collectives() {
  std::vector<Collective> all;
  for (size_t i = 0; i < kNames.size(); ++i) all.push_back(static_cast<Collective>(i));
  return all;
}

double bus_factor(Collective collective, int ranks) { return plan::bus_factor(std::string(name_of(collective)), ranks); }

const char* name_of(Placement placement) { return kPlacements[static_cast<size_t>(placement)]; }

Placement placement_from_name(const std::string& name) {
  if (name != kPlacements[0] && name != kPlacements[1])
    throw UsageError("there is no placement {}; there are neighbours and strided", name);
  return name == kPlacements[0] ? Placement::neighbours : Placement::strided;
}

std::vector<int> members_of(Placement placement, int world, int ranks, int rank) {
  std::vector<int> members;
  const int groups = world / ranks;
  for (int i = 0; i < ranks; ++i)
    members.push_back(placement == Placement::neighbours ? rank / ranks * ranks + i : rank % groups + i * groups);
  return members;
}

void CollectiveSweep::check(int world) const {
  if (world < 2)
    throw UsageError("collectives need at least 2 ranks: say --ranks, or start this under ingot launch, torchrun, srun or mpirun");
  if (min_bytes < 1 || max_bytes < min_bytes)
    throw UsageError("sizes from {} to {} bytes: the first must be positive and no larger than the last", min_bytes, max_bytes);
  if (step_bytes == 0 && !(step_factor > 1))
    throw UsageError("sizes that grow by a factor of {} never reach the last; say -f 2", step_factor);
  if (iterations < 1 || warmup < 0) throw UsageError("-n must be at least 1 and -w at least 0");
  if (sizes().size() > kMostSizes)
    throw UsageError("more than {} sizes from {} to {} bytes; take larger steps", kMostSizes, min_bytes, max_bytes);
  for (const int ranks : group_sizes)
    if (ranks < 2 || world % ranks != 0) throw UsageError("groups of {} do not divide {} ranks", ranks, world);
  const auto groups = groups_in(world);
  if (const int least = *std::min_element(groups.begin(), groups.end()); root < 0 || root >= least)
    throw UsageError("-r {}: the root is a rank of every group, of which the smallest has {}", root, least);
}

std::vector<int64_t> CollectiveSweep::sizes() const {
  std::vector<int64_t> all;
  for (double size = static_cast<double>(min_bytes); size <= static_cast<double>(max_bytes) && all.size() <= kMostSizes;
       size = step_bytes > 0 ? size + static_cast<double>(step_bytes) : std::max(size * step_factor, size + 1))
    all.push_back(static_cast<int64_t>(size));
  return all;
}

std::vector<int> CollectiveSweep::groups_in(int world) const {
  if (!group_sizes.empty()) return group_sizes;
  std::vector<int> all;
  for (int ranks = 2; ranks <= world; ++ranks)
    if (world % ranks == 0) all.push_back(ranks);
  return all;
}

std::vector<CollectiveResult> measure_collectives(const CollectiveSweep& sweep, comm::World& world, at::Device device,
                                                  const OnCollective& on_case) {
  sweep.check(world.size());
  std::vector<CollectiveResult> cases;
  for (const int ranks : sweep.groups_in(world.size()))
    for (const auto placement : sweep.placements) {
      if (ranks == world.size() && placement != sweep.placements.front()) continue;  // there is one group of all
      for (const auto collective : sweep.collectives)
        for (const auto& dtype : sweep.dtypes) {
          const int64_t element = dtype == "bf16" ? 2 : 4, each = counts_total(collective) ? element * ranks : element;
          int64_t last = 0;
          for (const int64_t size : sweep.sizes()) {
            const int64_t bytes = std::max<int64_t>(size / each, 1) * each;  // whole elements for every rank
            if (bytes == last) continue;
            last = bytes;
            const bool has_root = collective == Collective::broadcast || collective == Collective::reduce;
            cases.push_back(
                {collective, dtype, placement, ranks, world.size() / ranks, has_root ? sweep.root : -1, bytes, bytes / element, {}, {}});
          }
        }
    }
  std::vector<CollectiveResult> results;
  std::unique_ptr<comm::Group> group;
  for (size_t i = 0; i < cases.size(); ++i) {
    auto& c = cases[i];
    const auto next = fmt::format("{} {}, {} of {} {}, {}", name_of(c.collective), c.dtype, c.groups, c.ranks, name_of(c.placement),
                                  base::format_bytes(c.bytes));
    const auto stop = at::full({1}, on_case(i, cases.size(), next) ? 0 : 1, at::kInt);
    world.everyone().all_reduce(stop, comm::Reduction::max);
    if (stop.item<int>() != 0) break;
    if (i == 0 || c.ranks != cases[i - 1].ranks || c.placement != cases[i - 1].placement) {
      group.reset();
      group = world.group(fmt::format("bench_{}_{}", name_of(c.placement), c.ranks),
                          members_of(c.placement, world.size(), c.ranks, world.rank()));
    }
    if (has_out_of_place(c.collective)) c.out_of_place = measure(sweep, c, false, world, device, *group);
    if (has_in_place(c.collective)) c.in_place = measure(sweep, c, true, world, device, *group);
    results.push_back(c);
  }
  return results;
}

std::vector<CollectiveCurve> curves_of(const std::vector<CollectiveResult>& results) {
  std::vector<CollectiveCurve> curves;
  for (const auto& r : results) {
    const auto* last = curves.empty() ? nullptr : &curves.back().points.front();
    if (!last || last->collective != r.collective || last->dtype != r.dtype || last->ranks != r.ranks || last->placement != r.placement)
      curves.emplace_back();
    curves.back().points.push_back(r);
  }
  for (auto& curve : curves) fit(curve);
  return curves;
}

int64_t wrong_elements(const std::vector<CollectiveResult>& results) {
  int64_t sum = 0;
  for (const auto& r : results)
    for (const auto* timing : {&r.out_of_place, &r.in_place})
      if (*timing) sum += std::max<int64_t>((*timing)->wrong, 0);
  return sum;
}

std::string to_table(const std::vector<CollectiveResult>& results, const std::string& description, bool with_spread) {
  std::string text = fmt::format("# ingot bench collectives: {}\n", description);
  double sum = 0;
  int64_t count = 0;
  bool is_checked = false;
  for (const auto& curve : curves_of(results)) {
    const auto& first = curve.points.front();
    text += fmt::format("#\n# {}, {}, {} of {} ranks ({})\n", name_of(first.collective), first.dtype,
                        first.groups == 1 ? "1 group" : fmt::format("{} groups at once", first.groups), first.ranks,
                        first.groups == 1 ? "all" : name_of(first.placement));
    text += fmt::format("#{:>63}{:>33}{}\n", "out-of-place", "in-place",
                        with_spread ? fmt::format("{:>44}", "single calls, slowest rank (us)") : "");
    text += fmt::format("#{:>13}{:>14}{:>10}{:>7}{:>6}", "size", "count", "type", "redop", "root");
    for (int i = 0; i < 2; ++i) text += fmt::format("{:>10}{:>8}{:>8}{:>7}", "time", "algbw", "busbw", "#wrong");
    text += with_spread ? fmt::format("{:>11}{:>11}{:>11}{:>11}\n", "min", "p50", "p99", "max") : "\n";
    text += fmt::format("#{:>13}{:>14}{:>10}{:>7}{:>6}", "(B)", "(elements)", "", "", "");
    for (int i = 0; i < 2; ++i) text += fmt::format("{:>10}{:>8}{:>8}{:>7}", "(us)", "(GB/s)", "(GB/s)", "");
    text += "\n";
    const bool reduces = first.collective == Collective::all_reduce || first.collective == Collective::reduce ||
                         first.collective == Collective::reduce_scatter;
    for (const auto& r : curve.points) {
      text += fmt::format(" {:>13}{:>14}{:>10}{:>7}{:>6}{}{}{}\n", r.bytes, r.count, nccl_dtype(r.dtype), reduces ? "sum" : "none", r.root,
                          columns_of(r, r.out_of_place), columns_of(r, r.in_place), with_spread ? spread_of(r.timing()) : "");
      for (const auto* t : {&r.out_of_place, &r.in_place})
        if (*t) sum += r.bus_bandwidth(**t), ++count, is_checked = is_checked || (*t)->wrong >= 0;
    }
    text += fmt::format(
        "# time = {:.1f} us + bytes / {:.2f} GB/s, {:.0f} % off in the median and {:.0f} % at most; {} reach 90 % of the best bus "
        "bandwidth\n",
        curve.latency_s * 1e6, curve.bytes_per_s / 1e9, 100 * curve.median_error, 100 * curve.largest_error,
        base::format_bytes(curve.knee_bytes));
  }
  const int64_t wrong = wrong_elements(results);
  text += "#\n# Out of bounds values : " + (is_checked ? fmt::format("{} {}", wrong, wrong == 0 ? "OK" : "FAILED") : "not checked");
  text += fmt::format("\n# Avg bus bandwidth    : {:.4f}\n", count > 0 ? sum / static_cast<double>(count) / 1e9 : 0);
  return text;
}

nlohmann::ordered_json to_json(const std::vector<CollectiveResult>& results) {
  auto list = nlohmann::ordered_json::array();
  const auto timing = [](const std::optional<CollectiveTiming>& t) -> nlohmann::ordered_json {
    if (!t) return nullptr;
    return {{"mean_s", t->mean_s}, {"min_s", t->min_s}, {"p50_s", t->p50_s}, {"p99_s", t->p99_s}, {"max_s", t->max_s}, {"wrong", t->wrong}};
  };
  for (const auto& r : results)
    list.push_back({{"operation", name_of(r.collective)},
                    {"dtype", r.dtype},
                    {"placement", name_of(r.placement)},
                    {"ranks", r.ranks},
                    {"groups", r.groups},
                    {"root", r.root},
                    {"bytes", r.bytes},
                    {"count", r.count},
                    {"bus_factor", bus_factor(r.collective, r.ranks)},
                    {"out_of_place", timing(r.out_of_place)},
                    {"in_place", timing(r.in_place)}});
  auto curves = nlohmann::ordered_json::array();
  for (const auto& c : curves_of(results)) {
    const auto& first = c.points.front();
    curves.push_back({{"operation", name_of(first.collective)},
                      {"dtype", first.dtype},
                      {"placement", name_of(first.placement)},
                      {"ranks", first.ranks},
                      {"groups", first.groups},
                      {"latency_s", c.latency_s},
                      {"bytes_per_s", c.bytes_per_s},
                      {"median_error", c.median_error},
                      {"largest_error", c.largest_error},
                      {"knee_bytes", c.knee_bytes}});
  }
  return {{"results", std::move(list)}, {"curves", std::move(curves)}};
}

std::vector<CollectiveResult> collectives_from_json(const nlohmann::json& json) {
  std::vector<CollectiveResult> results;
  const auto timing = [](const nlohmann::json& t) -> std::optional<CollectiveTiming> {
    if (t.is_null()) return {};
    return CollectiveTiming{t.at("mean_s"), t.at("min_s"), t.at("p50_s"), t.at("p99_s"), t.at("max_s"), t.at("wrong")};
  };
  for (const auto& r : json.at("results"))
    results.push_back({collective_from_name(r.at("operation")), r.at("dtype"), placement_from_name(r.at("placement")), r.at("ranks"),
                       r.at("groups"), r.at("root"), r.at("bytes"), r.at("count"), timing(r.at("out_of_place")), timing(r.at("in_place"))});
  return results;
}

}  // namespace ingot::bench
