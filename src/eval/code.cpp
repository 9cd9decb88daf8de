// Programs that the model writes, and whether they do what tests ask.
#include "base/error.h"
#include "base/random.h"
#include "base/text.h"
#include "data/utf8.h"
#include "eval/kinds.h"
#include "eval/run_program.h"
#include "eval/write_texts.h"

namespace ingot::eval {
namespace {

class Code final : public RowTask {
 public:
  Code(Task given, const Options& options)
      : RowTask(std::move(given), options), target_(task_.target, "target", /*may_be_constant=*/true), program_(task_.program, "program") {
    if (!options.runs_code)
      throw base::UsageError(
          "{}: its programs are written by the model and run here, where they may do whatever your user may; pass "
          "--run-code to let them, best in a container or virtual machine without anything of worth",
          task_.file.string());
    if (task_.shots > 0 && target_.is_empty())
      throw base::ConfigError("{}: examples need target, what the model should have written", task_.file.string());
    for (const auto& word : base::split(task_.interpreter, ' '))
      if (!word.empty()) interpreter_.push_back(word);
    if (interpreter_.empty()) throw base::ConfigError("{}: interpreter is empty; name a command, such as python3", task_.file.string());
    for (const auto& row : rows_) program_of(row, "");
    task_.metrics.clear();
    for (const int64_t k : task_.pass_at) task_.metrics.push_back(fmt::format("pass@{}", k));
  }

  TaskResult run(models::Model& model, const Encoder& encoder, const Options& options) override {
    std::map<std::string, int64_t> counts;
    std::map<uint64_t, std::vector<Item>> items;
    for (const uint64_t seed : options.seeds) items[seed] = run_once(model, encoder, options, seed, counts);
    auto result = summed(task_.name, task_.kind, task_.metrics, items);
    result.counts = counts;
    return result;
  }

 private:
  std::string answer_of(const Row& row) const override { return target_.text(row); }

  std::string program_of(const Row& row, const std::string& completion) const {
    return program_.text(row, {{"completion", data::chat::Value(completion)}});
  }

  std::vector<Item> run_once(models::Model& model, const Encoder& encoder, const Options& options, uint64_t seed,
                             std::map<std::string, int64_t>& counts) {
    std::vector<Prompt> prompts;
    auto shots = shots_of(seed);
    for (const auto& row : rows_) {
      Prompt prompt{.ids = encoder.encode(prompt_of(row, shots, options, counts)),
                    .most_tokens = task_.most_tokens,
                    .temperature = task_.temperature};
      if (prompt.ids.empty()) throw base::DataError("{}: the prompt has no tokens; give a text", row.where);
      counts["cut_contexts"] += cut_prompt(prompt.ids, encoder.context(), task_.most_tokens) ? 1 : 0;
      for (int64_t sample = 0; sample < task_.samples; ++sample) {
        prompt.seed = base::stream_key(seed, fmt::format("{} {}", row.where, sample));
        prompts.push_back(prompt);
      }
    }
    const auto total = static_cast<int64_t>(prompts.size());
    if (options.begin) options.begin(task_.name + ": writing", total);
    const auto texts = write_texts(model, encoder.tokenizer(), prompts, task_.until, options);
    if (options.begin) options.begin(task_.name + ": running", total);
    std::vector<Item> items;
    for (size_t i = 0; i < rows_.size(); ++i) {
      Item item{.where = rows_[i].where, .source = source_of(rows_[i]), .shares = {}};
      item.details["programs"] = nlohmann::ordered_json::array();
      int64_t passed = 0;
      for (int64_t sample = 0; sample < task_.samples; ++sample) {
        const auto at = i * static_cast<size_t>(task_.samples) + static_cast<size_t>(sample);
        const auto result =
            run_program(interpreter_, program_of(rows_[i], texts[at].text), {.seconds = task_.seconds, .memory_mib = task_.memory_mib});
        passed += result.has_passed ? 1 : 0;
        ++counts["programs"];
        counts["programs_with_network"] += result.is_isolated ? 0 : 1;
        item.details["programs"].push_back(
            {{"completion", texts[at].text}, {"passed", result.has_passed}, {"why", result.why}, {"stderr", result.said}});
        if (options.progress) options.progress(static_cast<int64_t>(at) + 1);
      }
      for (const int64_t k : task_.pass_at) item.shares.push_back({pass_at(task_.samples, passed, k), 1});
      item.details["passed"] = passed;
      items.push_back(std::move(item));
    }
    return items;
  }

  Template target_, program_;
  std::vector<std::string> interpreter_;
};

}  // namespace

std::unique_ptr<Prepared> prepare_code(Task task, const Options& options) { return std::make_unique<Code>(std::move(task), options); }

}  // namespace ingot::eval
