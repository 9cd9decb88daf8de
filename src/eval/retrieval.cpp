// What a model finds again in long prompts that the program makes.
#include <algorithm>

#include "base/error.h"
#include "base/random.h"
#include "eval/haystack.h"
#include "eval/kinds.h"
#include "eval/write_texts.h"

namespace ingot::eval {
namespace {

class Retrieval final : public Prepared {
 public:
  Retrieval(Task given, const Options& options) : Prepared(std::move(given)) {
    if (task_.depths.empty())
      task_.depths = task_.retrieval == "needle" ? std::vector<double>{0, 0.25, 0.5, 0.75, 1} : std::vector<double>{0.5};
    if (task_.retrieval != "needle" && task_.depths.size() > 1)
      throw base::ConfigError("{}: depths are of retrieval = \"needle\" alone, and {} hides things everywhere; leave them out",
                              task_.file.string(), task_.retrieval);
    if (options.limit > 0) task_.questions = std::min(task_.questions, options.limit);
  }

  TaskResult run(models::Model& model, const Encoder& encoder, const Options& options) override {
    std::map<uint64_t, std::vector<Item>> items;
    std::map<std::string, int64_t> counts;
    for (const uint64_t seed : options.seeds) items[seed] = run_once(model, encoder, options, seed, counts);
    auto result = summed(task_.name, task_.kind, task_.metrics, items);
    // Over all seeds.
    const auto of = [](const char* field) {
      return [field](const Item& item) {
        const auto& value = item.details[field];
        return value.is_number_float() ? fmt::format("{:g}", value.get<double>()) : value.dump();
      };
    };
    add_groups(result, "tokens", result.each, of("length"));
    if (task_.retrieval == "needle") {
      add_groups(result, "depth", result.each, of("depth"));
      add_groups(result, "tokens at depth", result.each, [&](const Item& item) { return of("length")(item) + " at " + of("depth")(item); });
    }
    result.counts = counts;
    return result;
  }

 private:
  std::vector<Item> run_once(models::Model& model, const Encoder& encoder, const Options& options, uint64_t seed,
                             std::map<std::string, int64_t>& counts) {
    std::vector<Prompt> prompts;
    std::vector<std::vector<std::string>> answers;
    std::vector<Item> items;
    const auto tokens_of = [&](const std::string& text) { return static_cast<int64_t>(encoder.encode(text).size()); };
    for (const int64_t length : task_.lengths) {
      if (length > encoder.context())
        throw base::ConfigError("{}: lengths has {}, and the model sees {}; leave it out, or give another --context", task_.file.string(),
                                length, encoder.context());
      for (const double depth : task_.depths)
        for (int64_t question = 0; question < task_.questions; ++question) {
          const auto where = fmt::format("{} of {} tokens, depth {:g}, question {}", task_.retrieval, length, depth, question + 1);
          // What is written has its place within the length.
          int64_t answer_tokens = task_.most_tokens;
          HaystackOptions wanted{.kind = task_.retrieval, .tokens = length, .depth = depth, .needles = task_.needles};
          wanted.seed = base::stream_key(seed, where);
          if (answer_tokens == 0) answer_tokens = room_for_answers(wanted, tokens_of);
          wanted.tokens = length - answer_tokens;
          try {
            auto made = make_haystack(wanted, tokens_of);
            prompts.push_back({.ids = encoder.encode(made.prompt), .most_tokens = answer_tokens});
            answers.push_back(std::move(made.answers));
          } catch (const base::ConfigError& error) {
            throw base::ConfigError("{}: {} ({} tokens are for the answer)", task_.file.string(), error.what(), answer_tokens);
          }
          counts["prompt_tokens"] += static_cast<int64_t>(prompts.back().ids.size());
          Item item{.where = where, .source = "", .shares = {}};
          item.details = {{"length", length}, {"depth", depth}, {"tokens", prompts.back().ids.size()}};
          items.push_back(std::move(item));
        }
    }
    if (options.begin) options.begin(task_.name, static_cast<int64_t>(prompts.size()));
    const auto texts = write_texts(model, encoder.tokenizer(), prompts, {}, options);
    for (size_t i = 0; i < items.size(); ++i) {
      counts["written_tokens"] += texts[i].tokens;
      add_shares(items[i], texts[i].text, answers[i]);
    }
    return items;
  }

  // Twice what the answers take, and a few.
  static int64_t room_for_answers(HaystackOptions wanted, const std::function<int64_t(const std::string&)>& tokens_of) {
    wanted.tokens = INT32_MAX;
    std::string all;
    bool is_first = true;  // of all prompts the shortest fits, so that the answers alone are made
    const auto shortest = [&](const std::string&) { return std::exchange(is_first, false) ? 0 : int64_t{INT32_MAX} + 1; };
    for (const auto& answer : make_haystack(wanted, shortest).answers) all += " " + answer + ",";
    return 2 * tokens_of(all) + 8;
  }

  void add_shares(Item& item, const std::string& text, const std::vector<std::string>& answers) const {
    double found = 0;
    for (const auto& answer : answers) found += text.find(answer) != std::string::npos ? 1 : 0;
    const double recall = found / static_cast<double>(answers.size());
    for (const auto& metric : task_.metrics) item.shares.push_back({metric == "recall" ? recall : recall == 1 ? 1.0 : 0.0, 1});
    item.details["text"] = text;
    item.details["answers"] = answers;
  }
};

}  // namespace

std::unique_ptr<Prepared> prepare_retrieval(Task task, const Options& options) {
  return std::make_unique<Retrieval>(std::move(task), options);
}

}  // namespace ingot::eval
