#include "report/run/fake_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/random.h"
#include "train/metrics/checkpoint_record.h"
#include "train/metrics/run_facts.h"
#include "train/metrics/step_record.h"

namespace ingot::report {
namespace {

constexpr double kPi = 3.14159265358979;

std::vector<std::vector<int64_t>> fake_loads(const FakeRun& run, int64_t step, double progress) {
  std::vector<std::vector<int64_t>> loads;
  for (int64_t layer = 0; layer < run.moe_layers; ++layer) {
    const uint64_t taste = base::stream_key(run.seed, fmt::format("taste {}", layer)),
                   noise = base::stream_key(run.seed, fmt::format("load {}", layer));
    auto& counts = loads.emplace_back();
    for (int64_t expert = 0; expert < run.experts; ++expert) {
      // Each expert's popularity is its own and evens out as the balancing works.
      const double preference = 1.2 * base::normal_at(taste, static_cast<uint64_t>(expert)) * (0.15 + 0.85 * std::exp(-8 * progress));
      const double jitter = 0.05 * base::normal_at(noise, static_cast<uint64_t>(step * run.experts + expert));
      counts.push_back(
          std::llround(static_cast<double>(run.tokens_per_step) / static_cast<double>(run.experts) * std::exp(preference + jitter)));
    }
  }
  return loads;
}

train::StepRecord fake_record(const FakeRun& run, int64_t step) {
  const uint64_t key = base::stream_key(run.seed, "noise");
  const auto normal = [&](uint64_t which) { return base::normal_at(key, static_cast<uint64_t>(step) * 8 + which); };
  const double progress = static_cast<double>(step) / static_cast<double>(run.steps);
  const double fall = std::pow(1 + 60 * progress, -0.55), last_fall = std::pow(61.0, -0.55);
  const double loss = run.end_loss + (run.start_loss - run.end_loss) * (fall - last_fall) / (1 - last_fall);

  train::StepRecord r;
  r.step = step;
  r.steps = run.steps;
  r.tokens = step * run.tokens_per_step;
  r.loss = loss + run.noise * normal(0);
  r.grad_norm = (0.4 + 3 * std::exp(-30 * progress)) * std::exp(0.25 * normal(1)) * (step % 977 == 500 ? 12 : 1);
  const double warm_up = std::min(1.0, progress / 0.05);
  r.lr = run.learning_rate * warm_up * (0.1 + 0.45 * (1 + std::cos(kPi * progress)));
  r.step_ms = run.step_ms * (1 + 0.02 * std::abs(normal(2))) * (step % 250 == 0 ? 2.8 : 1) * (step == 1 ? 3 : 1);
  r.tokens_per_s = static_cast<double>(run.tokens_per_step) / r.step_ms * 1e3;
  r.flops_per_token = 4.2e7;
  r.tflops = r.flops_per_token * r.tokens_per_s / 1e12;
  r.mfu = r.tflops / 4.2;
  r.memory_peak_bytes = run.memory_bytes + (step > run.steps / 10 ? run.memory_bytes / 40 : 0);
  r.predicted_step_ms = run.step_ms * 1.016 * (1 + run.prediction_error);
  r.predicted_memory_bytes = run.memory_bytes * 103 / 100;
  r.eta_s = static_cast<double>(run.steps - step) * run.step_ms / 1e3;
  r.time_s = 1.78e9 + static_cast<double>(step) * run.step_ms / 1e3;
  if (run.validate_every > 0 && step % run.validate_every == 0) r.validation_loss = loss + 0.08 + 0.01 * normal(3);
  if (run.evaluate_every > 0 && step % run.evaluate_every == 0)
    r.evaluations = {{"agreement", 40, {{"acc", 0.5 + 0.4 * progress, 0.07, true}}},
                     {"<texts>", 9, {{"bits_per_byte", loss / 3, {}, false}}}};
  for (size_t s = 0; s < run.sources.size(); ++s)
    train::add_source_loss(r, {run.sources[s], r.loss + static_cast<double>(s), 100 * static_cast<int64_t>(s + 1)});
  if (run.moe_layers > 0) r.expert_load = train::expert_load_of(fake_loads(run, step, progress));
  for (const int64_t after : run.resumed_after) {
    if (step > after) r.time_s += 300;
    if (step == after + 1) r.resumed = true;
  }
  if (std::find(run.nonfinite.begin(), run.nonfinite.end(), step) != run.nonfinite.end()) {
    r.grad_norm = NAN;
    r.skipped = true;
  }
  return r;
}

checkpoint::SaveOutcome fake_save(const FakeRun& run, int64_t step, bool in_memory) {
  const uint64_t key = base::stream_key(run.seed, in_memory ? "memory" : "folder");
  checkpoint::SaveOutcome out;
  auto& r = out.report;
  r.path = fmt::format("checkpoints/step_{}", step);
  r.step = step;
  if (!in_memory && std::find(run.failed_saves.begin(), run.failed_saves.end(), step) != run.failed_saves.end()) {
    out.failure = fmt::format("rank 3: cannot write data_3: No space left on <device> (step {})", step);
    return out;
  }
  r.data_bytes = run.memory_bytes / 2;
  r.metadata_bytes = 40000;
  r.planned = step == run.save_every;
  double slowest_s = 0;
  for (size_t rank = 0; rank < run.ranks; ++rank) {
    auto& p = r.ranks.emplace_back();
    const double jitter = 1 + 0.1 * std::abs(base::normal_at(key, static_cast<uint64_t>(step) * 4096 + rank));
    // A moment at which storage is slow for all, in the middle of the run.
    const bool slow_moment = std::abs(step - run.steps / 2) < run.steps / 20;
    const double rate = (in_memory ? 6e9 : 1.2e9) / jitter / (rank == run.slow_rank ? 4 : 1) / (slow_moment && !in_memory ? 2 : 1);
    p.bytes = r.data_bytes / static_cast<int64_t>(run.ranks);
    p.plan_s = r.planned ? 0.012 : 0.0004;
    p.write_s = static_cast<double>(p.bytes) / rate * 0.85;
    p.sync_s = p.write_s * 0.15 / 0.85;
    p.copy_s = p.write_s * 0.6;
    p.hash_s = p.write_s * 0.2;
    p.stall_s = p.plan_s + (r.planned ? 0.05 : 0.002);
    slowest_s = std::max(slowest_s, p.plan_s + p.write_s + p.sync_s);
  }
  r.phases = r.ranks[0];
  r.phases.commit_s = slowest_s - r.phases.plan_s - r.phases.write_s - r.phases.sync_s + 0.015;
  r.phases.total_s = slowest_s + 0.015;
  return out;
}

checkpoint::LoadReport fake_load(const FakeRun& run) {
  checkpoint::LoadReport out;
  for (size_t rank = 0; rank < run.ranks; ++rank) {
    auto& p = out.ranks.emplace_back();
    p = {.plan_s = 0.02, .read_s = 0.3 + 0.01 * static_cast<double>(rank), .exchange_s = 0.08, .total_s = 0.5};
    p.wanted_bytes = run.memory_bytes / 2;
    p.read_bytes = p.wanted_bytes / static_cast<int64_t>(run.ranks);
    p.received_bytes = p.wanted_bytes - p.read_bytes;
    p.sent_bytes = p.received_bytes;
  }
  out.phases = out.ranks[0];
  return out;
}

void write_checkpoints(const std::filesystem::path& folder, const FakeRun& run) {
  if (run.save_every == 0 && run.memory_every == 0) return;
  std::ofstream file(folder / "checkpoints.jsonl");
  for (int64_t step = 1; step <= run.finished; ++step) {
    if (run.save_every > 0 && step % run.save_every == 0) file << train::to_json(fake_save(run, step, false), "folder").dump() << "\n";
    if (run.memory_every > 0 && step % run.memory_every == 0) file << train::to_json(fake_save(run, step, true), "memory").dump() << "\n";
    if (std::find(run.resumed_after.begin(), run.resumed_after.end(), step) != run.resumed_after.end())
      file << train::load_json(fmt::format("checkpoints/step_{}", step), step, fake_load(run)).dump() << "\n";
  }
}

}  // namespace

void write_fake_run(const std::filesystem::path& folder, const FakeRun& run) {
  base::make_directories(folder);
  std::ofstream metrics(folder / "metrics.jsonl");
  for (int64_t step = 1; step <= run.finished; ++step) metrics << train::to_json(fake_record(run, step)).dump() << "\n";
  write_checkpoints(folder, run);
  std::ofstream(folder / "config.toml") << fmt::format(
      "[model]\nfamily = \"{}\"\nlayers = 8\nhidden = 256\n\n[train]\nsteps = {}\nbatch_size = {}\nprecision = \"bf16\"\nseed = "
      "{}\n\n[optimizer]\nlr = {}\n",
      run.moe_layers > 0 ? "zaya1" : "llama", run.steps, run.tokens_per_step / 1024, run.seed, run.learning_rate);
  std::ofstream(folder / "log.txt")
      << "2026-05-01 12:00:00.000 info started\n2026-05-01 12:10:00.000 warning the disk is 95 % full: checkpoints may fail\n";
  train::write_run_facts(folder, {.version = "0.1.0",
                                  .model = run.moe_layers > 0 ? "zaya1" : "llama",
                                  .parameters = 12345678,
                                  .active_parameters = run.moe_layers > 0 ? 4567890 : 12345678,
                                  .device = "cpu, 2 threads",
                                  .precision = "bf16",
                                  .peak_tflops = 0.425,
                                  .mfu_convention = "MFU = TFLOP/s / 0.4250 TFLOP/s per rank (bf16 GEMM measured here); causal attention "
                                                    "counted once, active experts only, recompute not counted"});
}

}  // namespace ingot::report
