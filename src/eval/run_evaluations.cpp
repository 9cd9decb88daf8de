#include "eval/run_evaluations.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "parallel/buckets.h"
#include "train/inputs.h"

namespace ingot::eval {
namespace {

using base::ConfigError;
using mesh::Axis;

bool writes_texts(const Task& task) { return task.kind == "generate" || task.kind == "retrieval"; }

train::Evaluation evaluation_of(const TaskResult& result) {
  train::Evaluation evaluation{.task = result.name, .items = result.items, .metrics = {}};
  for (size_t m = 0; m < result.metrics.size(); ++m)
    evaluation.metrics.push_back(
        {result.metrics[m], result.estimates[m].value, result.estimates[m].error, measure_named(result.metrics[m]).higher_is_better});
  return evaluation;
}

// A model whose numbers overflow is no reason to end its run.
train::Evaluation unknown(const Task& task) {
  train::Evaluation evaluation{.task = task.name, .items = 0, .metrics = {}};
  for (const auto& metric : task.metrics)
    evaluation.metrics.push_back({metric, std::numeric_limits<double>::quiet_NaN(), std::nullopt, measure_named(metric).higher_is_better});
  return evaluation;
}

}  // namespace

RunEvaluations::RunEvaluations(const train::RunConfig& config) {
  const auto& t = config.train;
  if (t.evaluation_every == 0 && t.phases.empty())
    throw ConfigError("train.evaluations names {} task files, and train.evaluation_every is 0: say after how many steps they run",
                      t.evaluations.size());
  options_.limit = t.evaluation_limit;
  std::set<std::string> names;
  for (const auto& file : t.evaluations) {
    auto task = read_task(file);
    if (task.kind == "code")
      throw ConfigError(
          "train.evaluations: {} is of kind 'code', which runs what the model writes; ingot eval --run-code does of checkpoints", file);
    if (!names.insert(task.name).second)
      throw ConfigError("train.evaluations: {} is the second task of the name '{}'; give it another (name = \"…\")", file, task.name);
    tasks_.push_back(prepare(std::move(task), options_));
  }
  check_best_metric(t.best_metric);
  if (config.data.tokenizer.empty())
    throw ConfigError("train.evaluations needs the tokenizer of the run's data, and data.tokenizer is empty; name its file or folder");
  tokenizer_ = train::tokenizer_of(config);
  // Texts that do not fit are found now.
  auto checks = options_;
  checks.checks_alone = true;
  evaluate(tasks_, *models::create_model(config.model), *tokenizer_, checks);
}

void RunEvaluations::check_best_metric(const std::string& name) const {
  if (name == "validation_loss") return;
  std::vector<std::string> known = {"validation_loss"};
  for (const auto& prepared : tasks_) {
    const auto& task = prepared->task();
    known.push_back(task.name);
    for (const auto& metric : task.metrics) known.push_back(task.name + "/" + metric);
  }
  if (std::find(known.begin(), known.end(), name) == known.end())
    throw ConfigError("train.best_metric = \"{}\" is none of {}", name, base::join(known, ", "));
}

void RunEvaluations::check_layout(const train::RunConfig& config, const mesh::Mesh& mesh) const {
  if (config.train.evaluation_every == 0) return;
  constexpr const char* kInstead = "leave train.evaluations out and give checkpoints to ingot eval";
  for (const auto& [name, axis] :
       {std::pair{"pipeline", Axis::pipeline}, {"context", Axis::context}, {"tensor_sequence", Axis::tensor_sequence}})
    if (mesh.size(axis) > 1)
      throw ConfigError("train.evaluations run over data, tensor and expert ranks, and parallel.{} is {}; set it to 1, or {}", name,
                        mesh.size(axis), kInstead);
  const auto is_sharded = [&]() -> std::optional<std::pair<const char*, int64_t>> {
    for (const auto& [name, axis] : {std::pair{"tensor", Axis::tensor}, {"expert", Axis::expert}, {"expert_tensor", Axis::expert_tensor}})
      if (mesh.size(axis) > 1) return std::pair{name, int64_t{mesh.size(axis)}};
    if (config.parallel.zero == 3 && mesh.world() > 1) return std::pair{"zero", config.parallel.zero};
    return std::nullopt;
  }();
  for (const auto& prepared : tasks_)
    if (is_sharded && writes_texts(prepared->task()))
      throw ConfigError(
          "train.evaluations: the model writes texts for {} (kind '{}'), for which each rank needs all weights, and parallel.{} is {}; "
          "take "
          "the task out, or set parallel.{} to {}",
          prepared->task().file.string(), prepared->task().kind, is_sharded->first, is_sharded->second, is_sharded->first,
          is_sharded->first == std::string("zero") ? 2 : 1);
}

Ranks ranks_of(train::ParallelModel& parallel, mesh::Groups& groups) {
  auto* const buckets = parallel.buckets();
  if (buckets) buckets->complete_values();
  // Then ranks that have other questions have weights that this one needs.
  const auto& parameters = parallel.model().parameters().all();
  const bool are_shared = std::any_of(parameters.begin(), parameters.end(), [&](const auto& p) { return buckets && !buckets->keeps(*p); });
  return {.dealt = &groups.along({Axis::data}),
          .makes_equal_passes = are_shared || parallel.model().layout().experts.is_on(),
          .hooks = parallel.step().hooks()};
}

std::vector<train::Evaluation> RunEvaluations::run(train::ParallelModel& parallel, mesh::Groups& groups) {
  const auto ranks = ranks_of(parallel, groups);
  auto options = options_;
  options.ranks = &ranks;
  std::vector<train::Evaluation> all;
  for (auto& task : tasks_) try {
      all.push_back(evaluation_of(evaluate(*task, parallel.model(), *tokenizer_, options)));
    } catch (const base::NumericError& failure) {
      if (groups.world().rank() == 0) base::log_warning("{}; training goes on", failure.what());
      all.push_back(unknown(task->task()));
    }
  return all;
}

std::unique_ptr<RunEvaluations> evaluations_of(const train::RunConfig& config) {
  if (config.train.evaluations.empty()) return nullptr;
  return std::make_unique<RunEvaluations>(config);
}

}  // namespace ingot::eval
