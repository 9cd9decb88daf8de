#include "eval/evaluate.h"

#include <chrono>
#include <cmath>

#include "base/error.h"
#include "eval/kinds.h"

namespace ingot::eval {

std::unique_ptr<Prepared> prepare(Task task, const Options& options) {
  if (options.shots >= 0 && task.kind != "perplexity" && task.kind != "retrieval") task.shots = options.shots;
  if (task.kind == "multiple_choice") return prepare_multiple_choice(std::move(task), options);
  if (task.kind == "loglikelihood") return prepare_loglikelihood(std::move(task), options);
  if (task.kind == "perplexity") return prepare_perplexity(std::move(task), options);
  if (task.kind == "generate") return prepare_generate(std::move(task), options);
  if (task.kind == "code") return prepare_code(std::move(task), options);
  return prepare_retrieval(std::move(task), options);
}

TaskResult evaluate(Prepared& task, models::Model& model, const data::Tokenizer& tokenizer, const Options& options) {
  if (model.config().bidirectional)
    throw base::ConfigError(
        "the model is an encoder (model.bidirectional = true): it fills masks in, and neither continues a text nor tells its likelihood");
  const int64_t most = model.config().max_positions;
  if (options.context > most && most > 0) throw base::UsageError("--context {} is beyond the model's {} positions", options.context, most);
  const Encoder encoder(tokenizer, options.context > 0 ? options.context : most);
  const auto begin = std::chrono::steady_clock::now();
  auto result = task.run(model, encoder, options);
  result.shots = task.task().shots;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

std::vector<TaskResult> evaluate(const std::vector<std::unique_ptr<Prepared>>& tasks, models::Model& model,
                                 const data::Tokenizer& tokenizer, const Options& options) {
  std::vector<TaskResult> results;
  for (const auto& task : tasks) results.push_back(evaluate(*task, model, tokenizer, options));
  return results;
}

std::vector<PairScore> scores_of(models::Model& model, std::vector<Pair>& pairs, const Encoder& encoder, const Options& options,
                                 std::map<std::string, int64_t>& counts, const std::function<std::string(size_t)>& where) {
  for (size_t i = 0; i < pairs.size(); ++i) try {
      counts["cut_contexts"] += encoder.cut(pairs[i]) ? 1 : 0;
      counts["scored_tokens"] += static_cast<int64_t>(pairs[i].continuation.size());
    } catch (const base::DataError& error) {
      throw base::DataError("{}: {}", where(i), error.what());
    }
  if (options.checks_alone) {
    std::vector<PairScore> none;
    for (const auto& pair : pairs) none.push_back({.of_tokens = std::vector<float>(pair.continuation.size(), 0)});
    return none;
  }
  const auto scores = score_pairs(model, pairs, {.pass_tokens = options.pass_tokens, .progress = options.progress, .ranks = options.ranks});
  for (size_t i = 0; i < scores.size(); ++i)
    if (!std::isfinite(scores[i].log_likelihood))
      throw base::NumericError("{}: the log-likelihood is {}; the model's weights or --dtype are not fit for it", where(i),
                               scores[i].log_likelihood);
  return scores;
}

RowTask::RowTask(Task task, const Options& options)
    : Prepared(std::move(task)),
      description_(task_.description, "description", /*may_be_constant=*/true),
      prompt_(task_.prompt, "prompt"),
      source_(task_.source, "source") {
  const bool needs_all = task_.shots > 0 && !has_own_pool();
  auto rows = read_rows(task_.beside(task_.data), needs_all ? 0 : options.limit);
  if (needs_all) all_ = rows;
  if (options.limit > 0 && static_cast<int64_t>(rows.size()) > options.limit) rows.resize(static_cast<size_t>(options.limit));
  rows_ = std::move(rows);
  if (has_own_pool() && task_.shots > 0) others_ = read_rows(task_.beside(task_.shots_from));
}

Shots RowTask::shots_of(uint64_t seed) const { return {pool(), task_.shots, task_.shot_choice == "first", seed}; }

std::string RowTask::prompt_of(const Row& row, Shots& shots, const Options& options, std::map<std::string, int64_t>& counts) const {
  const auto description = description_.is_empty() ? "" : description_.text(row), question = prompt_.is_empty() ? "" : prompt_.text(row);
  std::vector<Example> examples;
  for (const auto* example : shots.next(row, !has_own_pool())) examples.push_back({prompt_.text(*example), answer_of(*example)});
  if (options.chat) try {
      const auto prompt = options.chat->prompt(description, examples, question, task_.delimiter, task_.shot_separator);
      if (prompt.is_without_system) ++counts["without_system"];
      return prompt.text;
    } catch (const base::DataError& error) {
      throw base::DataError("{}: {}", row.where, error.what());
    }
  std::string text = description;
  for (const auto& example : examples) text += example.question + task_.delimiter + example.answer + task_.shot_separator;
  return text + question;
}

}  // namespace ingot::eval
