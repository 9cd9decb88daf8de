#include "bench/step_probe.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "base/files.h"
#include "bench/data_loading.h"
#include "bench/iteration.h"
#include "bench/scratch_folder.h"
#include "bench/stopwatch.h"
#include "mesh/mesh.h"
#include "plan/communication.h"
#include "plan/time.h"
#include "train/config.h"
#include "train/parallel_model.h"

namespace ingot::bench {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSteps = 3;  // of each model that are watched, and as many that are not
constexpr int64_t kVocabulary = 3072;

struct Probe {
  const char* name;
  models::ModelConfig model;
  int64_t batch, seq;  // of a data rank
  const char* optimizer = "muon";
  bool cuts_weights = false;  // several ranks: over a tensor axis, not a data axis
};

models::ModelConfig dense(int64_t hidden, int64_t layers, int64_t ffn, int64_t heads, int64_t kv_heads) {
  models::ModelConfig c;
  c.family = "llama";
  c.hidden = hidden, c.layers = layers, c.ffn = ffn, c.heads = heads, c.kv_heads = kv_heads, c.vocab_size = kVocabulary;
  return c;
}

// Shapes that are nobody's in particular: what counts is that a step's tensors do not fit into the caches near the cores.
std::vector<Probe> probes() {
  auto mixture = dense(256, 3, 0, 4, 2);
  mixture.family = "zaya1", mixture.experts = 4, mixture.expert_ffn = 352, mixture.rope_fraction = 0.5;
  auto linear = dense(288, 4, 800, 4, 4);
  linear.family = "linear_llama";
  return {{"dense", dense(256, 5, 672, 4, 2), 6, 256},
          {"dense, AdamW", dense(448, 3, 1216, 8, 4), 4, 352, "adamw", true},
          {"mixture", mixture, 6, 288},
          {"linear", linear, 4, 448}};
}

train::RunConfig config_of(const Probe& probe, const std::string& dtype, int ranks, const fs::path& tokens) {
  train::RunConfig c;
  c.model = probe.model;
  c.data.sources = {{tokens.string(), 1}};
  c.data.seq_len = probe.seq;
  c.data.reset_documents = false;
  const bool is_cut = probe.cuts_weights && probe.model.kv_heads % ranks == 0;
  c.parallel.tensor = is_cut ? ranks : 1;
  c.train.batch_size = probe.batch * (is_cut ? 1 : ranks);
  c.train.precision = dtype;
  c.train.device = "cpu";
  c.optimizer.name = probe.optimizer;
  c.optimizer.warmup_steps = 2;
  c.log.level = "warning";
  return c;
}

// What the profile gives for a step, without what was measured within other steps.
std::map<WorkKind, double> predicted_s(const train::RunConfig& c, const mesh::Mesh& mesh, const plan::MachineProfile& profile) {
  const auto part = models::create_model(c.model, train::layout_of(mesh, c.parallel, c.model));
  const int64_t data = mesh.world() / c.parallel.tensor;
  plan::RunShape run{.batch = c.train.batch_size / data, .seq = c.data.seq_len, .precision = c.train.precision};
  run.optimizer = c.optimizer;
  run.threads = at::get_num_threads();
  run.world = mesh.world();
  run.replicas = data;
  run.zero = data > 1 ? c.parallel.zero : 0;
  auto raw = profile;
  raw.within_steps.clear();
  const auto time = plan::predict_step_time(*part, run, raw);
  auto kinds = time.by_kind();
  if (run.world > 1) kinds[WorkKind::communication] += plan::predict_communication(*part, run, raw, time).total_s();
  return kinds;
}

// Seconds of a step that is not watched, shared out as the watched ones were; of several ranks the middle between the least and most.
std::map<WorkKind, double> measured_s(const IterationReport& report) {
  std::map<WorkKind, double> kinds;
  double sum_ms = 0;
  for (const auto kind : all_work_kinds()) {
    if (kind == WorkKind::watching) continue;
    const auto i = static_cast<size_t>(kind);
    sum_ms += kinds[kind] = (report.least_ms[i] + report.most_ms[i]) / 2;
  }
  // Where updates are measured by themselves, the norm of their gradients is a part of them.
  kinds[kinds[WorkKind::muon] > 0 ? WorkKind::muon : WorkKind::adamw] += std::exchange(kinds[WorkKind::gradient_norm], 0);
  for (auto& [kind, value] : kinds) value *= median(report.plain_ms) / sum_ms / 1e3;
  return kinds;
}

}  // namespace

size_t step_probes() { return probes().size(); }

void measure_within_steps(const std::string& dtype, comm::World& world, plan::MachineProfile& profile, const resilience::StopSignal& stop,
                          const std::function<void(const char*)>& on_model) {
  ScratchFolder folder(base::temporary_folder(), "ingot-bench-steps", "TMPDIR");
  for (const char* name : {"tokens.bin", "tokens.idx", "tokens.bin.tmp", "tokens.idx.tmp", "tokens.lengths.tmp", "tokens.documents.tmp"})
    folder.adopt(name);
  const auto tokens = folder.path() / "tokens";
  write_simulated_dataset(tokens, int64_t{1} << 18, 500, kVocabulary);
  std::map<WorkKind, plan::WithinSteps> sums;
  for (const auto& probe : probes()) {
    if (on_model) on_model(probe.name);
    const auto config = config_of(probe, dtype, world.size(), tokens);
    mesh::Groups groups(world, config.parallel);
    const auto report = measure_iteration(config, kSteps, groups, stop, [](int64_t, int64_t) {});
    if (report.steps < kSteps || report.plain_ms.empty()) return;
    if (world.rank() != 0) continue;
    for (const auto& [kind, seconds] : measured_s(report)) sums[kind].measured_s += seconds;
    for (const auto& [kind, seconds] : predicted_s(config, mesh::Mesh(config.parallel, world.rank(), world.size()), profile))
      sums[kind].predicted_s += seconds;
  }
  if (world.rank() != 0) return;
  std::erase_if(profile.within_steps, [&](const auto& old) { return old.dtype == dtype; });
  for (const auto& [kind, sum] : sums)
    if (sum.measured_s > 0) profile.within_steps.push_back({dtype, name_of(kind), sum.measured_s, sum.predicted_s});
}

}  // namespace ingot::bench
