// Which of several answers the model finds likeliest.
#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "eval/kinds.h"

namespace ingot::eval {
namespace {

using base::DataError;

class MultipleChoice final : public RowTask {
 public:
  MultipleChoice(Task given, const Options& options) : RowTask(std::move(given), options), answer_(task_.answer, "answer") {
    for (const auto& choice : task_.choices) choices_.emplace_back(choice, "choices", /*may_be_constant=*/task_.choices.size() > 1);
    for (const auto& row : rows_) gold_of(row, choices_of(row));
  }

  TaskResult run(models::Model& model, const Encoder& encoder, const Options& options) override {
    std::map<std::string, int64_t> counts;
    std::map<uint64_t, std::vector<Item>> items;
    const auto seeds = task_.shots > 0 ? options.seeds : std::vector<uint64_t>{options.seeds[0]};
    for (const uint64_t seed : seeds) items[seed] = run_once(model, encoder, options, seed, counts);
    auto result = summed(task_.name, task_.kind, task_.metrics, items);
    result.counts = counts;
    return result;
  }

 private:
  std::string answer_of(const Row& row) const override {
    const auto choices = choices_of(row);
    return choices[gold_of(row, choices)];
  }

  std::vector<std::string> choices_of(const Row& row) const {
    std::vector<std::string> all;
    if (choices_.size() > 1) {
      for (const auto& choice : choices_) all.push_back(choice.text(row));
    } else {
      const auto list = choices_[0].value(row);
      if (!list.is_array())
        throw DataError("{}: choices = [\"{}\"] is {}, not a list of texts", row.where, task_.choices[0], list.type_name());
      for (const auto& one : list) {
        if (!one.is_string()) throw DataError("{}: '{}' has {} where a text should be", row.where, task_.choices[0], one.dump());
        all.push_back(one.get<std::string>());
      }
    }
    if (all.size() < 2) throw DataError("{}: a choice between {} answers is none; give two or more", row.where, all.size());
    for (const auto& one : all)
      if (one.empty()) throw DataError("{}: an answer is empty, and has no likelihood", row.where);
    return all;
  }

  // An index, also as a text, or the answer itself.
  size_t gold_of(const Row& row, const std::vector<std::string>& choices) const {
    const auto value = answer_.value(row);
    int64_t index = -1;
    if (value.is_number_integer()) {
      index = value.get<int64_t>();
    } else if (value.is_string()) {
      const auto& text = value.get_ref<const std::string&>();
      const auto same = std::find(choices.begin(), choices.end(), text);
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
      if (text.empty() || error != std::errc() || end != text.data() + text.size())
        index = same != choices.end() ? same - choices.begin() : -1;
    }
    if (index < 0 || index >= static_cast<int64_t>(choices.size()))
      throw DataError("{}: the right answer is {}; it must be 0 to {}, or one of the answers", row.where,
                      value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace), choices.size() - 1);
    return static_cast<size_t>(index);
  }

  std::vector<Item> run_once(models::Model& model, const Encoder& encoder, const Options& options, uint64_t seed,
                             std::map<std::string, int64_t>& counts) {
    std::vector<Pair> pairs;
    std::vector<size_t> row_of_pair;
    std::vector<std::vector<std::string>> choices;
    auto shots = shots_of(seed);
    for (const auto& row : rows_) {
      const auto prompt = prompt_of(row, shots, options, counts);
      choices.push_back(choices_of(row));
      for (const auto& choice : choices.back()) try {
          pairs.push_back(encoder.pair(prompt, (options.chat ? "" : task_.delimiter) + choice));  // a chat's answer is a message of its own
          row_of_pair.push_back(choices.size() - 1);
        } catch (const DataError& error) {
          throw DataError("{}: {}", row.where, error.what());
        }
    }
    if (options.begin) options.begin(task_.name, static_cast<int64_t>(pairs.size()));
    const auto scores = scores_of(model, pairs, encoder, options, counts, [&](size_t i) { return rows_[row_of_pair[i]].where; });
    std::vector<Item> items;
    size_t first = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      items.push_back(item_of(rows_[i], choices[i], std::span(scores).subspan(first, choices[i].size())));
      first += choices[i].size();
    }
    return items;
  }

  Item item_of(const Row& row, const std::vector<std::string>& choices, std::span<const PairScore> scores) const {
    const auto gold = gold_of(row, choices);
    // The first of several that are equally likely, as numpy's argmax.
    const auto best_by = [&](const auto& size_of) {
      size_t best = 0;
      for (size_t i = 1; i < scores.size(); ++i)
        if (scores[i].log_likelihood / size_of(i) > scores[best].log_likelihood / size_of(best)) best = i;
      return best;
    };
    Item item{.where = row.where, .source = source_of(row), .shares = {}};
    for (const auto& metric : task_.metrics) {
      const size_t best = best_by([&](size_t i) {
        return metric == "acc_norm"     ? static_cast<double>(characters_of(choices[i]))
               : metric == "acc_bytes"  ? static_cast<double>(choices[i].size())
               : metric == "acc_tokens" ? static_cast<double>(scores[i].of_tokens.size())
                                        : 1.0;
      });
      item.shares.push_back({best == gold ? 1.0 : 0.0, 1});
    }
    item.details = {{"answer", gold}, {"log_likelihoods", nlohmann::ordered_json::array()}, {"is_greedy", nlohmann::ordered_json::array()}};
    for (const auto& score : scores) {
      item.details["log_likelihoods"].push_back(score.log_likelihood);
      item.details["is_greedy"].push_back(score.is_greedy);
    }
    return item;
  }

  Template answer_;
  std::vector<Template> choices_;
};

class LogLikelihood final : public RowTask {
 public:
  LogLikelihood(Task given, const Options& options) : RowTask(std::move(given), options), target_(task_.target, "target") {
    for (const auto& row : rows_) target_.text(row);
  }

  TaskResult run(models::Model& model, const Encoder& encoder, const Options& options) override {
    std::map<std::string, int64_t> counts;
    std::map<uint64_t, std::vector<Item>> items;
    const auto seeds = task_.shots > 0 ? options.seeds : std::vector<uint64_t>{options.seeds[0]};
    for (const uint64_t seed : seeds) {
      std::vector<Pair> pairs;
      auto shots = shots_of(seed);
      // As in the harness nothing stands between the two: targets begin with their own space.
      for (const auto& row : rows_) try {
          pairs.push_back(encoder.pair(prompt_of(row, shots, options, counts), target_.text(row)));
        } catch (const DataError& error) {
          throw DataError("{}: {}", row.where, error.what());
        }
      if (options.begin) options.begin(task_.name, static_cast<int64_t>(pairs.size()));
      const auto scores = scores_of(model, pairs, encoder, options, counts, [&](size_t i) { return rows_[i].where; });
      for (size_t i = 0; i < rows_.size(); ++i) {
        Item item{.where = rows_[i].where, .source = source_of(rows_[i]), .shares = {}};
        for (const auto& metric : task_.metrics)
          item.shares.push_back({metric == "acc" ? (scores[i].is_greedy ? 1.0 : 0.0) : scores[i].log_likelihood, 1});
        item.details = {{"log_likelihood", scores[i].log_likelihood}, {"is_greedy", scores[i].is_greedy}};
        items[seed].push_back(std::move(item));
      }
    }
    auto result = summed(task_.name, task_.kind, task_.metrics, items);
    result.counts = counts;
    return result;
  }

 private:
  std::string answer_of(const Row& row) const override { return target_.text(row); }

  Template target_;
};

}  // namespace

std::unique_ptr<Prepared> prepare_multiple_choice(Task task, const Options& options) {
  return std::make_unique<MultipleChoice>(std::move(task), options);
}

std::unique_ptr<Prepared> prepare_loglikelihood(Task task, const Options& options) {
  return std::make_unique<LogLikelihood>(std::move(task), options);
}

}  // namespace ingot::eval
