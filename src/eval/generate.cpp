// What the model writes behind a prompt is the answer, or has it in it.
#include <algorithm>

#include "base/error.h"
#include "data/chat/functions.h"
#include "data/hugging_face/regex.h"
#include "data/utf8.h"
#include "eval/kinds.h"
#include "eval/write_texts.h"

namespace ingot::eval {
namespace {

using base::DataError;

class Generate final : public RowTask {
 public:
  Generate(Task given, const Options& options) : RowTask(std::move(given), options), target_(task_.target, "target") {
    if (!task_.filter.empty()) try {
        filter_ = std::make_unique<data::Regex>(task_.filter);
      } catch (const DataError& error) {
        throw base::ConfigError("{}: filter: {}", task_.file.string(), error.what());
      }
    for (const auto& row : rows_) targets_of(row);
  }

  TaskResult run(models::Model& model, const Encoder& encoder, const Options& options) override {
    std::map<std::string, int64_t> counts;
    std::map<uint64_t, std::vector<Item>> items;
    const auto seeds = task_.shots > 0 ? options.seeds : std::vector<uint64_t>{options.seeds[0]};
    for (const uint64_t seed : seeds) {
      std::vector<Prompt> prompts;
      auto shots = shots_of(seed);
      for (const auto& row : rows_) {
        Prompt prompt{.ids = encoder.encode(prompt_of(row, shots, options, counts)), .most_tokens = task_.most_tokens};
        if (prompt.ids.empty()) throw DataError("{}: the prompt has no tokens; give a text", row.where);
        counts["cut_contexts"] += cut_prompt(prompt.ids, encoder.context(), task_.most_tokens) ? 1 : 0;
        prompts.push_back(std::move(prompt));
      }
      if (options.begin) options.begin(task_.name, static_cast<int64_t>(prompts.size()));
      const auto texts = write_texts(model, encoder.tokenizer(), prompts, task_.until, options);
      for (size_t i = 0; i < rows_.size(); ++i) {
        counts["written_tokens"] += texts[i].tokens;
        items[seed].push_back(item_of(rows_[i], texts[i].text));
      }
    }
    auto result = summed(task_.name, task_.kind, task_.metrics, items);
    result.counts = counts;
    return result;
  }

 private:
  std::string answer_of(const Row& row) const override { return targets_of(row).front(); }

  // A field may be a list of answers that are right.
  std::vector<std::string> targets_of(const Row& row) const {
    const auto value = target_.value(row);
    if (!value.is_array()) return {target_.text(row)};
    std::vector<std::string> all;
    for (const auto& one : value) {
      if (!one.is_string()) throw DataError("{}: '{}' has {} where a text should be", row.where, task_.target, one.dump());
      all.push_back(one.get<std::string>());
    }
    if (all.empty()) throw DataError("{}: '{}' has no answer", row.where, task_.target);
    return all;
  }

  std::string filtered(const std::string& text) const {
    std::string repaired;
    const std::string whole(data::valid_utf8(text, repaired));
    if (!filter_) return whole;
    const auto matches = filter_->find_all(whole);
    return matches.empty() ? "[invalid]" : whole.substr(matches[0].begin, matches[0].end - matches[0].begin);
  }

  std::string plain(std::string text) const {
    if (task_.strip) text = stripped(text);
    if (task_.ignore_punctuation)
      std::erase_if(text, [](char c) { return static_cast<unsigned char>(c) < 128 && std::ispunct(static_cast<unsigned char>(c)); });
    if (task_.ignore_case) text = data::chat::apply_filter("lower", text, {}).string();
    return text;
  }

  Item item_of(const Row& row, const std::string& text) const {
    const auto answer = filtered(text);
    const auto targets = targets_of(row);
    const bool is_right = std::any_of(targets.begin(), targets.end(), [&](const auto& target) { return plain(target) == plain(answer); });
    Item item{.where = row.where, .source = source_of(row), .shares = std::vector<Share>(task_.metrics.size(), {is_right ? 1.0 : 0.0, 1})};
    item.details = {{"text", text}, {"answer", answer}, {"target", targets}};
    return item;
  }

  Template target_;
  std::unique_ptr<data::Regex> filter_;
};

}  // namespace

std::unique_ptr<Prepared> prepare_generate(Task task, const Options& options) {
  return std::make_unique<Generate>(std::move(task), options);
}

}  // namespace ingot::eval
