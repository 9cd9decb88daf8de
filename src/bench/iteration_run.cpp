// `ingot bench iteration` as a whole: the ranks that a launcher started, their data, what is predicted of them, and the watched steps.
#include <ATen/Parallel.h>

#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "bench/data_loading.h"
#include "bench/iteration.h"
#include "bench/planning.h"
#include "bench/scratch_folder.h"
#include "comm/share_cores.h"
#include "device/device.h"
#include "plan/describe.h"
#include "plan/run/shape.h"
#include "train/check_layout.h"
#include "train/parallel_model.h"
#include "train/phases.h"

namespace ingot::bench {
namespace {

namespace fs = std::filesystem;
using base::ConfigError;

constexpr int64_t kDocumentTokens = 500;

// Made-up tokens in place of the run's; `folder` holds them.
void use_random_data(train::RunConfig& config, ScratchFolder& folder, int64_t steps) {
  for (const char* name : {"tokens.bin", "tokens.idx", "tokens.bin.tmp", "tokens.idx.tmp", "tokens.lengths.tmp", "tokens.documents.tmp"})
    folder.adopt(name);
  const auto phase = train::lay_out_phases(config).front();
  const int64_t needed = phase.tokens_per_step() * (2 * steps + 2) + 1, most = int64_t{64} << 20;
  const auto prefix = folder.path() / "tokens";
  write_simulated_dataset(prefix, std::max(phase.data.seq_len + 1, std::min(needed, most)), kDocumentTokens, config.model.vocab_size);
  config.data.sources = {{prefix.string(), 1}};
  config.data.validation.clear();
  config.data.validation_fraction = 0;
  config.data.tokenizer.clear();
  for (auto& p : config.train.phases) p.sources.clear();
}

void check_data(const train::RunConfig& config) {
  const auto phases = train::lay_out_phases(config);
  for (const auto& source : phases.front().data.sources)
    if (!data::has_index(source.path))
      throw ConfigError("{}.idx is not there; make it with 'ingot data tokenize', or give --random-data to measure with made-up tokens",
                        data::dataset_prefix(source.path).string());
}

// By the cached or a quick profile of this machine, which all ranks measure together; the first one's result counts. Empty in fp64,
// which is not predicted.
std::map<WorkKind, double> predicted_ms(const train::RunConfig& config, const mesh::Mesh& mesh, const Company& company) {
  const auto profile = profile_of_run(config, company);
  const auto part = models::create_model(config.model, train::layout_of(mesh, config.parallel, config.model));
  plan::PipelineFacts pipelines;
  auto shape = plan::shape_of(config, train::lay_out_phases(config).front(), mesh, pipelines);
  shape.documents = plan::documents_of(train::lay_out_phases(config).front());
  if (device::device_named(config.train.device).is_cpu())
    shape.ranks_per_core = std::max(1.0, static_cast<double>(company.local_size * at::get_num_threads()) / base::usable_cores());
  const auto plan =
      plan::PlanMaker(profile, config.train.precision, mesh.world())
          .make(*models::create_model(config.model), *part, shape, 0, device::memory_bytes(device::device_named(config.train.device)));
  if (!plan.why_no_time.empty()) base::log_info("no prediction of the step time: {}", plan.why_no_time);
  auto predicted = plan.time.by_kind();
  if (plan.has_time() && plan.communication.total_s() > 0) predicted[WorkKind::communication] += plan.communication.total_s();
  for (auto& [kind, amount] : predicted) amount *= 1e3;
  return predicted;
}

std::string heading(const train::RunConfig& config, const mesh::Mesh& mesh) {
  const auto phase = train::lay_out_phases(config).front();
  return fmt::format("{} with {} layers, hidden {}, {}; {} sequences of {} tokens a step, recompute {}, {}\n{}, {} threads{}",
                     config.model.family, config.model.layers, config.model.hidden, config.train.precision, phase.batch_size,
                     phase.data.seq_len, config.train.recompute, config.optimizer.name, base::cpu_name(), at::get_num_threads(),
                     mesh.world() > 1 ? fmt::format(" on each of {} ranks: {}", mesh.world(), mesh.describe()) : "");
}

}  // namespace

std::optional<IterationRun> run_iteration(train::RunConfig config, int64_t steps, bool has_random_data) {
  train::check(config);
  if (config.log.level == "info") config.log.level = "warning";  // the run's own lines would be about a run that does not matter
  train::apply_log_level(config.log);
  const auto ranks = comm::rank_environment(base::environment());
  if (config.train.threads > 0) at::set_num_threads(static_cast<int>(config.train.threads));
  else comm::share_cores(ranks);
  const mesh::Mesh mesh(config.parallel, ranks.rank, ranks.size);
  train::check_layout(config, mesh);

  std::optional<ScratchFolder> folder;
  if (has_random_data) use_random_data(config, folder.emplace(base::temporary_folder(), "ingot-bench-tokens", "TMPDIR"), steps);
  else check_data(config);
  const auto device = device::device_of_rank(config.train.device, ranks.local_rank);
  const resilience::StopSignal stop("\nstopping after this step; what was measured is kept\n");
  const auto world = comm::World::join(ranks, device.is_cuda(),
                                       {.timeout = std::chrono::duration<double>(config.resilience.comm_timeout_s),
                                        .rendezvous_timeout = std::chrono::duration<double>(config.resilience.rendezvous_timeout_s)});
  IterationRun run;
  run.predicted_ms = predicted_ms(config, mesh, {world.get(), ranks.local_rank, ranks.local_size});
  mesh::Groups groups(*world, config.parallel);
  std::optional<base::ProgressBar> bar;
  run.report = measure_iteration(config, steps, groups, stop, [&](int64_t done, int64_t count) {
    if (world->rank() != 0) return;
    if (!bar) bar.emplace("bench iteration", count, base::ProgressUnit::count);
    bar->update(done);
  });
  if (bar && stop.received() == 0) bar->update(2 * steps + 2);
  if (bar) bar->finish(stop.received() != 0 ? "stopped; what was measured is kept" : "");
  if (world->rank() != 0) return std::nullopt;
  run.heading = heading(config, mesh);
  run.threads = at::get_num_threads();
  return run;
}

}  // namespace ingot::bench
