// How well texts are foreseen: in windows of the model's context and of shorter ones, by source, and by where in its window a token stands.
#include <algorithm>
#include <bit>

#include "base/error.h"
#include "eval/kinds.h"

namespace ingot::eval {
namespace {

class Perplexity final : public RowTask {
 public:
  Perplexity(Task given, const Options& options) : RowTask(std::move(given), options), target_(task_.target, "target") {
    for (const auto& row : rows_)
      if (target_.text(row).empty()) throw base::DataError("{}: the text is empty; leave the row out", row.where);
  }

  TaskResult run(models::Model& model, const Encoder& encoder, const Options& options) override {
    std::map<std::string, int64_t> counts;
    for (const int64_t length : task_.lengths)
      if (length > encoder.context())
        throw base::ConfigError("{}: lengths has {}, and the model sees {}", task_.file.string(), length, encoder.context());
    std::map<int64_t, std::vector<Share>> by_position;
    auto items = run_at(model, encoder, options, encoder.context(), counts, &by_position);
    auto result = summed(task_.name, task_.kind, task_.metrics, {{options.seeds[0], items}});
    for (const int64_t length : task_.lengths) {
      const auto of_length = run_at(model, encoder, options, length, counts, nullptr);
      add_groups(result, "context", of_length, [&](const Item&) { return std::to_string(length); });
    }
    add_positions(result, by_position);
    result.counts = counts;
    return result;
  }

 private:
  std::string answer_of(const Row& row) const override { return target_.text(row); }

  std::vector<Item> run_at(models::Model& model, const Encoder& encoder, const Options& options, int64_t context,
                           std::map<std::string, int64_t>& counts, std::map<int64_t, std::vector<Share>>* by_position) {
    std::vector<Pair> windows;
    std::vector<size_t> row_of;
    for (size_t i = 0; i < rows_.size(); ++i)
      for (auto& window : encoder.windows(target_.text(rows_[i]), context)) windows.push_back(std::move(window)), row_of.push_back(i);
    if (windows.empty()) throw base::DataError("{}: the texts have no tokens", task_.file.string());
    if (options.begin) options.begin(fmt::format("{} at {}", task_.name, context), static_cast<int64_t>(windows.size()));
    const auto scores = scores_of(model, windows, encoder, options, counts, [&](size_t i) { return rows_[row_of[i]].where; });
    std::vector<double> sums(rows_.size(), 0);
    std::vector<int64_t> tokens(rows_.size(), 0);
    for (size_t i = 0; i < windows.size(); ++i) {
      sums[row_of[i]] += scores[i].log_likelihood;
      tokens[row_of[i]] += static_cast<int64_t>(scores[i].of_tokens.size());
      if (by_position) note_positions(windows[i], scores[i], *by_position);
    }
    std::vector<Item> items;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const auto text = target_.text(rows_[i]);
      Item item{.where = rows_[i].where, .source = source_of(rows_[i]), .shares = {}};
      for (const auto& metric : task_.metrics)
        item.shares.push_back({sums[i], static_cast<double>(metric == "word_perplexity" ? words_of(text)
                                                            : metric == "loss"          ? tokens[i]
                                                                                        : static_cast<int64_t>(text.size()))});
      item.details = {{"log_likelihood", sums[i]}, {"tokens", tokens[i]}, {"bytes", text.size()}};
      items.push_back(std::move(item));
    }
    return items;
  }

  // By the number of tokens that the model saw before: 0, 1, 2-3, 4-7 … One share of each window.
  static void note_positions(const Pair& window, const PairScore& score, std::map<int64_t, std::vector<Share>>& by_position) {
    std::map<int64_t, Share> here;
    for (size_t t = 0; t < score.of_tokens.size(); ++t) {
      const auto seen = static_cast<uint64_t>(window.context.size() + t);
      auto& share = here.try_emplace(static_cast<int64_t>(std::bit_floor(seen)), Share{0, 0}).first->second;
      share.value += score.of_tokens[t];
      share.weight += 1;
    }
    for (const auto& [from, share] : here) by_position[from].push_back(share);
  }

  void add_positions(TaskResult& result, const std::map<int64_t, std::vector<Share>>& by_position) const {
    for (const auto& [from, shares] : by_position) {
      const auto loss = estimate(shares, Scale::negative);
      double tokens = 0;
      for (const auto& share : shares) tokens += share.weight;
      result.positions.push_back({from, 2 * from - 1, static_cast<int64_t>(tokens), loss});
    }
  }

  Template target_;
};

}  // namespace

std::unique_ptr<Prepared> prepare_perplexity(Task task, const Options& options) {
  return std::make_unique<Perplexity>(std::move(task), options);
}

}  // namespace ingot::eval
