// The kinds of tasks, each in a file of its own.
#pragma once

#include "eval/evaluate.h"
#include "eval/row.h"
#include "eval/shots.h"

namespace ingot::eval {

/// A task of rows, with examples before each question.
class RowTask : public Prepared {
 protected:
  RowTask(Task task, const Options& options);

  /// What stands behind a prompt in an example.
  virtual std::string answer_of(const Row& row) const = 0;
  /// Description, examples and the question, as a chat if the options say so; asked of the rows in their order.
  std::string prompt_of(const Row& row, Shots& shots, const Options& options, std::map<std::string, int64_t>& counts) const;
  Shots shots_of(uint64_t seed) const;
  std::string source_of(const Row& row) const { return source_.is_empty() ? "" : source_.text(row); }

  std::vector<Row> rows_;  // that are asked

 private:
  const std::vector<Row>& pool() const { return has_own_pool() ? others_ : all_; }
  bool has_own_pool() const { return !task_.shots_from.empty(); }

  Template description_, prompt_, source_;
  std::vector<Row> all_, others_;  // for examples
};

std::unique_ptr<Prepared> prepare_multiple_choice(Task task, const Options& options);
std::unique_ptr<Prepared> prepare_loglikelihood(Task task, const Options& options);
std::unique_ptr<Prepared> prepare_perplexity(Task task, const Options& options);
std::unique_ptr<Prepared> prepare_generate(Task task, const Options& options);
std::unique_ptr<Prepared> prepare_code(Task task, const Options& options);
std::unique_ptr<Prepared> prepare_retrieval(Task task, const Options& options);

/// With progress and counts, and an error that says so where scores are no numbers.
std::vector<PairScore> scores_of(models::Model& model, std::vector<Pair>& pairs, const Encoder& encoder, const Options& options,
                                 std::map<std::string, int64_t>& counts, const std::function<std::string(size_t)>& where);

}  // namespace ingot::eval
