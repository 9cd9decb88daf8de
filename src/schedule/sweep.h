// What `ingot bench parallel` asks for and what it finds: methods at sizes, and for each the time, exposed communication, memory and
// traffic, whether real ranks ran it or the traces of a layer were replayed on a cluster (bench/parallel/). Values.
#pragma once

#include <functional>
#include <optional>

#include "schedule/layout.h"
#include "schedule/traffic.h"

namespace ingot::schedule {

struct Result {
  std::string method;  // "tp4+sp2" for both axes
  std::string layer;
  int ranks = 1;
  int64_t seq = 0, batch = 0;
  std::string pass;
  double time_ms = 0;
  double exposed_ms = 0;   // Replay::exposed_s
  int64_t peak_bytes = 0;  // of the rank with most
  Traffic ops;             // the largest over ranks
  bool fits = true;        // peak_bytes into the device's memory
};

/// What a command line asks for: every method at every size. `base` gives the layer and all other sizes.
struct Sweep {
  std::vector<Method> methods;
  std::vector<int> ranks;
  std::vector<int64_t> seqs;
  std::vector<Pass> passes = {Pass::forward, Pass::both};
  Layout base;
};
/// Every layout that a method has at these sizes.
std::vector<Layout> layouts_of(const Sweep& sweep, Method method, int ranks, int64_t seq);
/// A layout that check() refuses, and why.
struct Refusal {
  std::string method;
  int ranks = 1;
  int64_t seq = 0;
  std::string reason;
};

enum class Quantity : uint8_t { time, received_bytes, peak_bytes };
std::string name_of(Quantity quantity);

/// From this sequence on `lower` needs less than `higher`; at the next shorter one that was asked for it did not. To 1 % of that one, but
/// no finer than 4 tokens a rank.
struct Crossover {
  std::string lower, higher;
  std::string layer;
  int ranks = 1;
  std::string pass;
  Quantity quantity = Quantity::time;
  int64_t seq = 0;
};

struct SweepResult {
  std::vector<Result> results;
  std::vector<Refusal> refusals;
  std::vector<Crossover> crossovers;  // within the smallest and the largest of `seqs`
};

/// The smallest multiple of `step` in [from, to] at which a < b, if a is not below b before it and is from there on; nothing if it never
/// is.
using Measure = std::function<double(int64_t seq)>;
std::optional<int64_t> first_below(const Measure& a, const Measure& b, int64_t from, int64_t to, int64_t step);

/// {"results": [...], "crossovers": [...], "refused": [...]} with the fields that docs/parallel-methods.md lists. mode: "modelled" or
/// "measured"; machine: the cluster's name or the host's.
std::string to_json(const SweepResult& sweep, const std::string& mode, const std::string& machine);
/// For people: a row for each result, then crossovers and refusals.
std::string to_table(const SweepResult& sweep);

}  // namespace ingot::schedule
