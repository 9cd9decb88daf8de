#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>

#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "cli/config.h"
#include "cli/forecast.h"
#include "cli/gemm_backend_setting.h"
#include "cli/ranks.h"
#include "cli/verbs.h"
#include "cli/version.h"
#include "device/device.h"
#include "mesh/groups.h"
#include "object_store/object_storage.h"
#include "train/check_layout.h"
#include "train/trainer.h"

namespace ingot::cli {
namespace {

namespace fs = std::filesystem;

int64_t ranks_of_plan(const train::RunConfig& config, const comm::RankEnvironment& ranks) {
  const auto& p = config.parallel;
  return ranks.size > 1 ? ranks.size : std::max<int64_t>(1, p.data) * p.pipeline * p.context * p.tensor * p.tensor_sequence;
}

// What each rank keeps of the model and of its training.
std::string holdings(const train::RunConfig& config, const mesh::Mesh& mesh) {
  using mesh::Axis;
  std::vector<std::string> parts;
  if (mesh.size(Axis::pipeline) > 1) parts.emplace_back("the layers of its stage");
  if (mesh.size(Axis::context) > 1) parts.push_back(fmt::format("1/{} of the tokens of its sequences", mesh.size(Axis::context)));
  if (const int size = mesh.size(Axis::tensor_sequence); size > 1)
    parts.push_back(fmt::format("1/{} of each matrix and of the tokens of its sequences", size));
  if (mesh.size(Axis::tensor) > 1) parts.push_back(fmt::format("1/{} of each matrix", mesh.size(Axis::tensor)));
  if (mesh.size(Axis::expert) > 1) parts.push_back(fmt::format("1/{} of the experts", mesh.size(Axis::expert)));
  if (mesh.size(Axis::expert_tensor) > 1) parts.push_back(fmt::format("1/{} of each expert", mesh.size(Axis::expert_tensor)));
  const std::string of = parts.empty() ? "" : fmt::format("{}; of that ", fmt::join(parts, ", "));
  const int ranks = mesh.size(Axis::data) * mesh.size(Axis::context);
  if (ranks == 1 || config.parallel.zero == 0) return of + "all weights, gradients and moments";
  switch (config.parallel.zero) {
    case 1: return fmt::format("{}all weights and gradients, 1/{} of masters and moments", of, ranks);
    case 2: return fmt::format("{}all weights, 1/{} of gradients, masters and moments", of, ranks);
    default: return fmt::format("{}1/{} of weights, gradients, masters and moments", of, ranks);
  }
}

std::string stages(const train::RunConfig& config, const mesh::Mesh& mesh) {
  const int count = mesh.size(mesh::Axis::pipeline);
  if (count == 1) return "";
  std::string text;
  const auto pieces = train::cut_depth(config.model, count * static_cast<int>(config.parallel.pipeline_chunks));
  for (size_t piece = 0; piece < pieces.size(); ++piece)
    text +=
        fmt::format("pipeline {}: layers {} to {}{}{}\n", piece % static_cast<size_t>(count), pieces[piece].begin, pieces[piece].end - 1,
                    piece == 0 ? ", behind the embedding" : "", piece + 1 == pieces.size() ? ", before the head" : "");
  return text;
}

int plan_only(const train::RunConfig& config, const comm::RankEnvironment& ranks, bool json) {
  const int64_t world = ranks_of_plan(config, ranks);
  const mesh::Mesh mesh(config.parallel, 0, static_cast<int>(world));
  train::check_layout(config, mesh);
  if (ranks.rank != 0) return 0;
  // Ranks that are not there yet would share this machine's cores.
  if (ranks.size == 1 && config.train.threads == 0) share_cores({.size = static_cast<int>(world), .local_size = static_cast<int>(world)});
  std::fputs(dry_run(config, mesh, json).c_str(), stdout);
  if (!json && world > 1)
    fmt::print("\nranks          {}; each holds {}, and trains on {} of the {} sequences of a step\n{}", mesh.describe(),
               holdings(config, mesh), config.train.batch_size / mesh.size(mesh::Axis::data), config.train.batch_size,
               mesh.rank_map() + stages(config, mesh));
  return 0;
}

}  // namespace

int run_train(const Options& all) {
  const auto& o = all.train;
  if (o.settings_help) {
    train::RunConfig defaults;
    const auto table = train::settings_of(defaults);
    constexpr const char* kHead =
        "# Settings\n\nMade from the program (`ingot train --settings --markdown`); a test fails when it is out of date.\n"
        "A TOML file sets them, `--set key=value` overrides the file.\n\n";
    if (o.markdown) std::fputs(kHead, stdout);
    std::fputs((o.markdown ? table.markdown() : table.help()).c_str(), stdout);
    return 0;
  }
  if (o.config.empty()) throw base::UsageError("ingot train needs a configuration, for instance configs/zaya1-nano.toml");
  auto config = read_config(o.config, o.set);
  train::apply_log_level(config.log);
  const fs::path run_dir = !o.run_dir.empty() ? fs::path(o.run_dir) : fs::path("runs") / fs::path(o.config).stem();
  const auto ranks = comm::rank_environment(base::environment());
  if (config.train.threads > 0) at::set_num_threads(static_cast<int>(config.train.threads));
  else share_cores(ranks);
  if (o.dry_run) return plan_only(config, ranks, all.json);

  // Impossible sizes end here, on every rank, before anyone waits for another.
  const mesh::Mesh mesh(config.parallel, ranks.rank, ranks.size);
  train::check_layout(config, mesh);
  const bool is_gpu = device::device_named(config.train.device).is_cuda();
  if (is_gpu) device::use_gpu(ranks.local_rank);
  const int64_t program = ranks.rank == 0 ? program_bytes(config) : 0;
  const resilience::StopSignal stop;
  const auto world = comm::World::join(ranks, is_gpu,
                                       {.timeout = std::chrono::duration<double>(config.resilience.comm_timeout_s),
                                        .rendezvous_timeout = std::chrono::duration<double>(config.resilience.rendezvous_timeout_s)});
  if (world->rank() == 0 && world->size() > 1) base::log_info("{}: {}", world->description(), mesh.describe());
  try {
    const bench::Company company{world.get(), ranks.local_rank, ranks.local_size};
    const auto forecast = forecast_of(config, mesh, company, program);
    choose_gemm_backend(config, run_dir, o.resume, mesh, company);
    mesh::Groups groups(*world, config.parallel);
    train::Trainer trainer(config, {run_dir, o.resume, kVersion, object_store::storage_of}, forecast.numbers, groups);
    const base::LoadWatch load;
    trainer.run(stop);
    const double companions_s = bench::companions_cpu_seconds(company, load.own_cpu_s());
    if (company.is_first()) keep_outcomes(forecast, trainer.measured(), load.foreign_share(companions_s), run_dir);
  } catch (const base::CommError& failure) {
    base::make_directories(run_dir);
    world->ledger().write(run_dir, world->size(), failure.what());
    throw base::CommError(
        "{}\nThe last operations of this rank are in {}/ledger-rank-{}.json; ingot doctor --ledgers {} says which rank went astray.",
        failure.what(), run_dir.string(), world->rank(), run_dir.string());
  }
  return 0;
}

}  // namespace ingot::cli
