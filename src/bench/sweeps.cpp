#include "bench/sweeps.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "bench/operations.h"

namespace ingot::bench {
namespace {

using base::UsageError;
using plan::MachineProfile;
using plan::Pass;

constexpr size_t kMostMeasurements = 20'000;
// Of what operands take: the sets that are used in turn are copies of the first one, and bf16 may be widened.
constexpr double kCopies = 4;

double d(int64_t x) { return static_cast<double>(x); }

template <class T>
std::vector<T> or_usual(const std::vector<T>& given, std::vector<T> usual) {
  return given.empty() ? std::move(usual) : given;
}

void check_names(const char* flag, const std::vector<std::string>& names, const std::vector<std::string>& known) {
  for (const auto& name : names)
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw UsageError("{} {}: it is one of {}{}", flag, name, base::join(known, ", "), base::did_you_mean(name, known));
}

void check_memory(const std::string& label, double bytes, const at::Device& device, const char* flags) {
  if (!device.is_cpu()) return;  // a GPU says itself what does not fit
  const double most = d(base::total_memory_bytes()) / 2;
  if (bytes > most)
    throw UsageError("{} takes some {}B of memory, more than half of this machine's; choose smaller {}", label, base::format_count(bytes),
                     flags);
}

void check_count(size_t count) {
  if (count > kMostMeasurements) throw UsageError("these lists make more than {} measurements; give fewer values", kMostMeasurements);
}

// What a GPU has no memory for is left out, and what was measured stays.
Measurement guarded(std::string label, std::function<void(MachineProfile&)> run) {
  return {label, [label, run = std::move(run)](MachineProfile& profile) {
            try {
              run(profile);
            } catch (const c10::OutOfMemoryError&) {
              base::log_warning("{} is left out: the device has not enough memory for it", label);
            }
          }};
}

Pass pass_named(const std::string& name) {
  return name == "grad_input" ? Pass::grad_input : name == "grad_weight" ? Pass::grad_weight : Pass::forward;
}

struct Sizes {
  int64_t m, n, k;
};

// A linear layer's sizes as those of one of its GEMMs.
Sizes sizes_of(Pass pass, int64_t rows, int64_t out, int64_t in) {
  if (pass == Pass::grad_input) return {rows, in, out};
  return pass == Pass::grad_weight ? Sizes{out, in, rows} : Sizes{rows, out, in};
}

// Sums of batched GEMMs, too, have the sizes of the forward pass's operands: a^T g is [k, n].
Sizes batched_sizes_of(Pass pass, int64_t m, int64_t n, int64_t k) {
  if (pass == Pass::grad_input) return {m, k, n};
  return pass == Pass::grad_weight ? Sizes{k, n, m} : Sizes{m, n, k};
}

struct GemmCase {
  std::string dtype, kind;
  Pass pass = Pass::forward;
  int64_t m = 0, n = 0, k = 0, groups = 1;  // of the layer
  double imbalance = 1;

  plan::GemmRate gemm() const {
    const auto sizes = kind == "batched" ? batched_sizes_of(pass, m, n, k) : sizes_of(pass, m, n, k);
    return {dtype, kind, plan::name_of(pass), sizes.m, sizes.n, sizes.k, 0, groups, imbalance};
  }
};

std::string label_of(const GemmCase& c) {
  const auto many = c.kind == "plain" ? "" : fmt::format("{} ", c.kind);
  const auto times = c.groups > 1 ? fmt::format("{} x ", c.groups) : "";
  const auto uneven = c.imbalance > 1 ? fmt::format(", imbalance {:g}", c.imbalance) : "";
  return fmt::format("{}gemm {} {} {}{}x{}x{}{}", many, c.dtype, plan::name_of(c.pass), times, c.m, c.n, c.k, uneven);
}

Measurement measurement_of(const GemmCase& c, const Setting& setting, const MeasureGemm& run) {
  const auto label = label_of(c);
  check_memory(label, kCopies * 4 * d(c.groups) * (d(c.m) * d(c.k) + d(c.k) * d(c.n) + d(c.m) * d(c.n)), setting.device,
               "--m, --n, --k or --groups");
  return guarded(label, [gemm = c.gemm(), pass = c.pass, run](MachineProfile& profile) { run(gemm, pass, profile); });
}

// Times them as the trainer calls them.
MeasureGemm timed(const Setting& setting) {
  return [repeats = setting.repeats, device = setting.device](const plan::GemmRate& p, Pass pass, MachineProfile& profile) {
    profile.gemm.push_back(p.kind == "plain"     ? measure_gemm(p.dtype, pass, p.m, p.n, p.k, repeats, device)
                           : p.kind == "batched" ? measure_batched(p.dtype, pass, p.m, p.n, p.k, p.groups, repeats, device)
                                                 : measure_grouped(p.dtype, pass, p.m, p.n, p.k, p.groups, p.imbalance, repeats, device));
  };
}

struct AttentionCase {
  std::string dtype;
  int64_t batch, seq, heads, kv_heads, head_dim, window;
};

Measurement measurement_of(const AttentionCase& c, const Setting& setting) {
  auto label = fmt::format("attention {} {}x{} of {}/{} heads", c.dtype, c.seq, c.head_dim, c.heads, c.kv_heads);
  if (c.window > 0) label += fmt::format(", window {}", c.window);
  check_memory(label, kCopies * 4 * d(c.batch) * d(c.seq) * (3 * d(c.heads) + 2 * d(c.kv_heads)) * d(c.head_dim), setting.device,
               "--seq, --heads, --head-dim or --batch");
  return guarded(label, [c, repeats = setting.repeats, device = setting.device](MachineProfile& profile) {
    profile.attention.push_back(measure_attention(c.dtype, c.batch, c.seq, c.heads, c.kv_heads, c.head_dim, repeats, device, c.window));
  });
}

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> all;
  for (int64_t i = 1; i <= number; ++i)
    if (number % i == 0) all.push_back(i);
  return all;
}

// Each of --kv-heads must go with some --heads: the nearest that would is named.
void check_kv_heads(const std::vector<int64_t>& heads, const std::vector<int64_t>& kv_heads) {
  for (const int64_t kv : kv_heads) {
    if (std::any_of(heads.begin(), heads.end(), [&](int64_t h) { return h % kv == 0; })) continue;
    int64_t nearest = 1;
    for (const int64_t h : heads)
      for (const int64_t fits : divisors(std::min<int64_t>(h, 1 << 20)))
        if (std::abs(fits - kv) < std::abs(nearest - kv)) nearest = fits;
    throw UsageError("--kv-heads {} divides none of --heads; the nearest that does is {}", kv, nearest);
  }
}

}  // namespace

bool GemmSweep::is_given() const {
  return !m.empty() || !n.empty() || !k.empty() || !kinds.empty() || !passes.empty() || !groups.empty() || !imbalance.empty();
}

std::vector<Measurement> measurements_of(const GemmSweep& sweep, const Setting& setting) {
  return gemm_measurements(sweep, setting, timed(setting));
}

std::vector<Measurement> gemm_measurements(const GemmSweep& sweep, const Setting& setting, const MeasureGemm& run) {
  const bool many = !sweep.groups.empty() || !sweep.imbalance.empty();
  const auto kinds = or_usual(sweep.kinds, !many                     ? std::vector<std::string>{"plain"}
                                           : sweep.imbalance.empty() ? std::vector<std::string>{"batched", "grouped"}
                                                                     : std::vector<std::string>{"grouped"});
  const auto passes = or_usual(sweep.passes, {"forward", "grad_input", "grad_weight"});
  check_names("--kinds", kinds, {"plain", "batched", "grouped"});
  check_names("--passes", passes, {"forward", "grad_input", "grad_weight"});
  const auto has = [&](const char* kind) { return std::find(kinds.begin(), kinds.end(), kind) != kinds.end(); };
  if (!sweep.groups.empty() && !has("batched") && !has("grouped"))
    throw UsageError("--groups is of batched and grouped GEMMs; add them to --kinds");
  if (!sweep.imbalance.empty() && !has("grouped")) throw UsageError("--imbalance is of grouped GEMMs; add them to --kinds");
  const auto groups = or_usual(sweep.groups, {8});
  const auto imbalance = or_usual(sweep.imbalance, {1.0});
  const int64_t least_groups = *std::min_element(groups.begin(), groups.end());
  for (const double share : imbalance)
    if (!(share >= 1 && share <= d(least_groups)))
      throw UsageError("--imbalance {:g}: of {} groups it is 1 to {}; the nearest is {}", share, least_groups, least_groups,
                       share < 1 ? 1 : least_groups);
  const auto ms = or_usual(sweep.m, {512}), ns = or_usual(sweep.n, {1024}), ks = or_usual(sweep.k, {1024});
  // Before they are made: lists of thousands have billions of combinations.
  double count = 1;
  for (const size_t size : {setting.dtypes.size(), kinds.size(), passes.size(), ms.size(), ns.size(), ks.size()})
    count *= static_cast<double>(size);
  check_count(static_cast<size_t>(std::min(count, 1e9)));

  std::vector<Measurement> all;
  for (const auto& dtype : setting.dtypes)
    for (const auto& kind : kinds)
      for (const int64_t count_of : kind == "plain" ? std::vector<int64_t>{1} : groups)
        for (const double share : kind == "grouped" ? imbalance : std::vector<double>{1})
          for (const int64_t m : ms)
            for (const int64_t n : ns)
              for (const int64_t k : ks)
                for (const auto& pass : passes) {
                  all.push_back(measurement_of(GemmCase{dtype, kind, pass_named(pass), m, n, k, count_of, share}, setting, run));
                  check_count(all.size());
                }
  return all;
}

bool AttentionSweep::is_given() const {
  return !seq.empty() || !heads.empty() || !kv_heads.empty() || !head_dims.empty() || !windows.empty() || !batches.empty();
}

std::vector<Measurement> measurements_of(const AttentionSweep& sweep, const Setting& setting) {
  const auto lengths = or_usual(sweep.seq, {128, 512, 2048}), heads = or_usual(sweep.heads, {8}),
             head_dims = or_usual(sweep.head_dims, {64});
  const auto windows = or_usual(sweep.windows, {0}), batches = or_usual(sweep.batches, {1});
  check_kv_heads(heads, sweep.kv_heads);
  std::vector<Measurement> all;
  bool too_wide = true;
  for (const auto& dtype : setting.dtypes)
    for (const int64_t batch : batches)
      for (const int64_t head : heads)
        for (const int64_t kv : sweep.kv_heads.empty() ? std::vector<int64_t>{head} : sweep.kv_heads)
          for (const int64_t head_dim : head_dims)
            for (const int64_t window : windows)
              for (const int64_t seq : lengths) {
                if (head % kv != 0 || window >= seq) continue;
                too_wide = false;
                all.push_back(measurement_of(AttentionCase{dtype, batch, seq, head, kv, head_dim, window}, setting));
                check_count(all.size());
              }
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  if (too_wide) throw UsageError("--window must be shorter than a --seq, which is {} at most; the nearest is {}", longest, longest - 1);
  return all;
}

std::vector<Measurement> memory_measurements(const std::vector<int64_t>& bytes, const Setting& setting) {
  const auto& [dtypes, repeats, device] = setting;
  std::vector<Measurement> all;
  const auto add = [&](const std::string& operation, int64_t size, std::function<void(MachineProfile&)> run) {
    const auto label = fmt::format("memory {} {} KiB", operation, size >> 10);
    check_memory(label, 3 * d(size), at::kCPU, "--sizes");
    all.push_back(guarded(label, std::move(run)));
  };
  for (const auto& operation : memory_operations())
    for (const int64_t size : bytes)
      add(operation, size, [=, repeats = repeats, device = device](MachineProfile& profile) {
        profile.memory.push_back(measure_memory(operation, size, repeats, device));
      });
  if (device.is_cpu()) return all;
  for (const std::string operation : {"copy", "read", "write"})
    for (const int64_t size : bytes)
      add("host_" + operation, size, [=, repeats = repeats](MachineProfile& profile) {
        profile.memory.push_back(measure_memory(operation, size, repeats, at::kCPU));
        profile.memory.back().operation = "host_" + operation;
      });
  for (const auto& operation : transfer_operations())
    for (const int64_t size : bytes)
      add(operation, size, [=, repeats = repeats, device = device](MachineProfile& profile) {
        profile.memory.push_back(measure_transfer(operation, size, repeats, device));
      });
  return all;
}

std::vector<Measurement> usual_groups(const std::string& dtype, bool few, const Setting& setting) {
  auto own = setting;
  own.dtypes = {dtype};
  // Beside hundreds of plain ones they may cost seconds only.
  own.repeats.enough_s = std::min(own.repeats.enough_s, 0.05);
  own.repeats.give_up_s = std::min(own.repeats.give_up_s, 0.3);
  auto all = measurements_of(GemmSweep{.m = few ? std::vector<int64_t>{256} : std::vector<int64_t>{64, 512},
                                       .n = {1024},
                                       .k = {512},
                                       .kinds = {"grouped"},
                                       .passes = {},
                                       .groups = {8},
                                       .imbalance = {1, 3}},
                             own);
  const auto chunks = measurements_of(GemmSweep{.m = few ? std::vector<int64_t>{64} : std::vector<int64_t>{64, 128},
                                                .n = {64},
                                                .k = {64},
                                                .kinds = {"batched"},
                                                .passes = {},
                                                .groups = {64},
                                                .imbalance = {}},
                                      own);
  all.insert(all.end(), chunks.begin(), chunks.end());
  return all;
}

std::vector<Measurement> balance_measurements(bool quick, const Setting& setting) {
  const int64_t side = setting.device.is_cpu() ? 2048 : 8192, bytes = quick ? int64_t{1} << 26 : int64_t{1} << 28;
  std::vector<Measurement> all;
  for (const auto& dtype : setting.dtypes)
    all.push_back(measurement_of(GemmCase{dtype, "plain", Pass::forward, side, side, side}, setting, timed(setting)));
  all.push_back({"memory triad", [=, repeats = setting.repeats, device = setting.device](MachineProfile& profile) {
                   profile.memory.push_back(measure_memory("triad", bytes, repeats, device));
                 }});
  return all;
}

}  // namespace ingot::bench
