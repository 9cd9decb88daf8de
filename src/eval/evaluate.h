// Runs tasks on a model.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "data/tokenizer.h"
#include "eval/chat.h"
#include "eval/encode.h"
#include "eval/ranks.h"
#include "eval/results.h"
#include "eval/score_pairs.h"
#include "eval/task.h"
#include "models/model.h"

namespace ingot::eval {

struct Options {
  int64_t limit = 0;                                                  // questions of each task; 0 = all
  int64_t shots = -1;                                                 // -1: as tasks say
  std::vector<uint64_t> seeds = {1234};                               // of the choice of examples, and of what is generated
  int64_t context = 0;                                                // 0: the model's
  int64_t pass_tokens = 2048;                                         // through the model at once
  bool runs_code = false;                                             // programs that the model writes may be run here
  bool checks_alone = false;                                          // prompts are made and cut, and nothing goes through the model
  const Chat* chat = nullptr;                                         // null: prompts are texts as they are
  const Ranks* ranks = nullptr;                                       // null: this one alone
  std::function<void(const std::string& task, int64_t total)> begin;  // all may be empty
  std::function<void(int64_t done)> progress;
};

/// A task whose files are read and whose templates stand: what can be wrong without a model is found by making one.
class Prepared {
 public:
  virtual ~Prepared() = default;
  const Task& task() const { return task_; }
  virtual TaskResult run(models::Model& model, const Encoder& encoder, const Options& options) = 0;

 protected:
  explicit Prepared(Task task) : task_(std::move(task)) {}
  Task task_;
};

/// `task` with the options' shots and limit. Throws ConfigError or DataError.
std::unique_ptr<Prepared> prepare(Task task, const Options& options);

/// Throws DataError for rows that do not fit, NumericError for a model whose logits are no numbers.
TaskResult evaluate(Prepared& task, models::Model& model, const data::Tokenizer& tokenizer, const Options& options);
/// All of them, one after another.
std::vector<TaskResult> evaluate(const std::vector<std::unique_ptr<Prepared>>& tasks, models::Model& model,
                                 const data::Tokenizer& tokenizer, const Options& options);

}  // namespace ingot::eval
