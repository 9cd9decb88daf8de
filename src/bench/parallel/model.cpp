#include "bench/parallel/model.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "plan/cluster_profile.h"

namespace ingot::bench {
namespace {

using schedule::Cluster, schedule::Layout, schedule::Measure, schedule::Pass, schedule::Quantity, schedule::Refusal, schedule::Result;
using schedule::Sweep, schedule::SweepResult;

void check_devices(const Layout& layout, const Cluster& cluster) {
  if (layout.ranks > cluster.devices())
    throw base::ConfigError("{} over {} ranks: '{}' has {} devices", layout.label(), layout.ranks, cluster.name, cluster.devices());
}

double quantity_of(const Result& result, Quantity quantity) {
  switch (quantity) {
    case Quantity::time: return result.time_ms;
    case Quantity::received_bytes: return static_cast<double>(received_bytes(result.ops));
    case Quantity::peak_bytes: return static_cast<double>(result.peak_bytes);
  }
  return 0;
}

class Sweeper {
 public:
  Sweeper(const Sweep& sweep, const Cluster& cluster) : sweep_(sweep), cluster_(cluster) {
    if (sweep.methods.empty() || sweep.ranks.empty() || sweep.seqs.empty() || sweep.passes.empty())
      throw base::ConfigError("nothing to model: methods, ranks, sequence lengths and passes need one entry each at least");
    cluster.rates(sweep.base.sizes.dtype);
    for (const int ranks : sweep.ranks)
      for (const auto pass : sweep.passes) run(ranks, pass);
    if (out_.results.empty())
      throw base::ConfigError("nothing can be laid out: {}", out_.refusals.empty() ? "no method" : out_.refusals[0].reason);
  }
  SweepResult take() { return std::move(out_); }

 private:
  struct Line {
    Layout layout;
    std::vector<Result> results;  // by seq, ascending
  };

  void run(int ranks, Pass pass) {
    auto seqs = sweep_.seqs;
    std::sort(seqs.begin(), seqs.end());
    std::vector<Line> lines;
    known_.clear();
    for (const auto method : sweep_.methods)
      for (auto layout : schedule::layouts_of(sweep_, method, ranks, seqs.front())) {
        layout.pass = pass;
        Line line{layout, {}};
        for (const int64_t seq : seqs) {
          layout.sizes.seq = seq;
          try {
            line.results.push_back(model(layout, cluster_));
          } catch (const base::ConfigError& error) {
            refuse({layout.label(), ranks, seq, error.what()});
          }
        }
        out_.results.insert(out_.results.end(), line.results.begin(), line.results.end());
        if (line.results.size() == seqs.size()) lines.push_back(std::move(line));
      }
    if (seqs.size() < 2) return;
    for (const auto& a : lines)
      for (const auto& b : lines)
        for (const auto quantity : {Quantity::time, Quantity::received_bytes, Quantity::peak_bytes}) cross(a, b, quantity);
  }

  void refuse(Refusal refusal) {
    for (const auto& known : out_.refusals)
      if (known.method == refusal.method && known.ranks == refusal.ranks && known.seq == refusal.seq) return;
    out_.refusals.push_back(std::move(refusal));
  }

  // Between the first two neighbouring lengths at which the order turns round.
  void cross(const Line& a, const Line& b, Quantity quantity) {
    for (size_t i = 1; i < a.results.size(); ++i) {
      const bool was_below = quantity_of(a.results[i - 1], quantity) < quantity_of(b.results[i - 1], quantity);
      if (was_below || quantity_of(a.results[i], quantity) >= quantity_of(b.results[i], quantity)) continue;
      const int64_t from = a.results[i - 1].seq, grain = int64_t{4} * a.layout.ranks;
      const auto found = schedule::first_below(measure(a.layout, quantity), measure(b.layout, quantity), from, a.results[i].seq,
                                               std::max(grain, from / kFineness / grain * grain));
      if (found)
        out_.crossovers.push_back(
            {a.layout.label(), b.layout.label(), name_of(a.layout.layer), a.layout.ranks, name_of(a.layout.pass), quantity, *found});
      return;
    }
  }

  Measure measure(Layout layout, Quantity quantity) {
    return [this, layout, quantity](int64_t seq) mutable {
      layout.sizes.seq = seq;
      const auto [found, is_new] = known_.try_emplace({layout.label(), seq});
      if (is_new) found->second = model(layout, cluster_);
      return quantity_of(found->second, quantity);
    };
  }

  static constexpr int64_t kFineness = 128;
  const Sweep& sweep_;
  const Cluster& cluster_;
  std::map<std::pair<std::string, int64_t>, Result> known_;  // of one number of ranks and one pass, by method and seq
  SweepResult out_;
};

}  // namespace

ModelledLayer model_layer(const Layout& layout, const Cluster& cluster) {
  check_devices(layout, cluster);
  const auto& rates = cluster.rates(layout.sizes.dtype);
  ModelledLayer out{trace_layer(layout, plan::target_of(cluster)), {}};
  out.replay = schedule::replay(out.layer.program, [&](const auto& operation) { return duration_of(operation, cluster, rates); });
  return out;
}

Result model(const Layout& layout, const Cluster& cluster) {
  check(layout);
  const auto modelled = model_layer(layout, cluster);
  return {.method = layout.label(),
          .layer = name_of(layout.layer),
          .ranks = layout.ranks,
          .seq = layout.sizes.seq,
          .batch = layout.sizes.batch,
          .pass = name_of(layout.pass),
          .time_ms = modelled.replay.time_s * 1e3,
          .exposed_ms = modelled.replay.exposed_s * 1e3,
          .peak_bytes = modelled.layer.peak_bytes,
          .ops = traffic_of(modelled.layer.program),
          .fits = static_cast<double>(modelled.layer.peak_bytes) <= cluster.memory_bytes};
}

SweepResult model(const Sweep& sweep, const Cluster& cluster) { return Sweeper(sweep, cluster).take(); }

}  // namespace ingot::bench
