#include "eval/score_pairs.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "device/device.h"

namespace ingot::eval {
namespace {

using Ids = std::vector<int64_t>;
using Caches = std::vector<models::LayerCache>;

// Pairs [first, end) with one context.
struct Question {
  size_t first = 0, end = 0;
  int64_t context = 0, longest = 0;  // tokens of the context; of it and the longest continuation
  bool is_shared = false;            // the context is fed once for several rows
};

// What is fed behind the shared prefix: of one question, for the pairs that have the same tokens but for the last.
struct FedRow {
  Ids ids;
  size_t question = 0;  // within the batch
  std::vector<size_t> pairs{};
};

class Scorer {
 public:
  Scorer(models::Model& model, const std::vector<Pair>& pairs, const ScoreOptions& options)
      : model_(model), pairs_(pairs), options_(options), scores_(pairs.size()) {}

  std::vector<PairScore> run() {
    const auto questions = own_questions();
    for (size_t first = 0; first < questions.size();) {
      const size_t end = end_of_batch(questions, first);
      run_batch(std::span(questions).subspan(first, end - first));
      for (size_t i = first; i < end; ++i) done_ += static_cast<int64_t>(questions[i].end - questions[i].first);
      if (options_.progress) options_.progress(done_);
      first = end;
    }
    if (deals()) {
      const Ids nothing(1, 0);
      while (any_has_a_pass(false)) make_pass({nothing}, 0, nullptr), release_head();
      share_scores();
    }
    return std::move(scores_);
  }

 private:
  bool deals() const { return options_.ranks && options_.ranks->deals(); }

  // Of those sorted by length each rank takes every so-many-eth, so that all have as much to do.
  std::vector<Question> own_questions() const {
    auto all = sorted_questions();
    if (!deals()) return all;
    std::vector<Question> own;
    const auto& group = *options_.ranks->dealt;
    for (auto i = static_cast<size_t>(group.rank()); i < all.size(); i += static_cast<size_t>(group.size())) own.push_back(all[i]);
    return own;
  }

  // Every rank asks before each pass, until nobody has one left.
  bool any_has_a_pass(bool own) const {
    if (!deals() || !options_.ranks->makes_equal_passes) return own;
    const auto any = at::full({1}, own ? 1 : 0, at::kLong);
    options_.ranks->dealt->all_reduce(any, comm::Reduction::max);
    return any.item<int64_t>() != 0;
  }

  // What other ranks have scored is 0 here, so that a sum is exact.
  void share_scores() {
    size_t numbers = 0;
    for (const auto& pair : pairs_) numbers += 2 + pair.continuation.size();
    const auto all = at::zeros({static_cast<int64_t>(numbers)}, at::kDouble);
    auto* at = all.data_ptr<double>();
    for (size_t i = 0; i < pairs_.size(); ++i) {
      const auto& score = scores_[i];
      at[0] = score.log_likelihood, at[1] = score.is_greedy ? 1 : 0;
      std::copy(score.of_tokens.begin(), score.of_tokens.end(), at + 2);
      at += 2 + pairs_[i].continuation.size();
    }
    options_.ranks->dealt->all_reduce(all);
    at = all.data_ptr<double>();
    for (size_t i = 0; i < pairs_.size(); ++i) {
      const size_t tokens = pairs_[i].continuation.size();
      scores_[i] = {at[0], at[1] != 0, {}};
      for (size_t t = 0; t < tokens; ++t) scores_[i].of_tokens.push_back(static_cast<float>(at[2 + t]));
      at += 2 + tokens;
    }
  }

  bool is_longrope() const { return model_.config().rope_scaling == "longrope"; }
  // Rows on either side of LongRoPE's border are turned by other factors.
  bool is_long(const Question& q) const { return is_longrope() && q.longest - 1 > model_.config().rope_original_positions; }

  std::vector<Question> sorted_questions() const {
    std::vector<Question> questions;
    for (size_t i = 0; i < pairs_.size(); ++i) {
      const auto& pair = pairs_[i];
      if (questions.empty() || pair.context != pairs_[questions.back().first].context || is_longrope())
        questions.push_back({i, i, static_cast<int64_t>(pair.context.size())});
      auto& q = questions.back();
      q.end = i + 1;
      q.longest = std::max(q.longest, q.context + static_cast<int64_t>(pair.continuation.size()));
    }
    for (auto& q : questions)
      for (size_t i = q.first + 1; i < q.end && q.context > 1; ++i) {
        const auto &a = pairs_[q.first].continuation, &b = pairs_[i].continuation;
        q.is_shared = q.is_shared || a.size() != b.size() || !std::equal(a.begin(), a.end() - 1, b.begin());
      }
    // The longest first, so that what is left to do is never more than it seems.
    std::stable_sort(questions.begin(), questions.end(), [&](const Question& a, const Question& b) {
      const auto key = [&](const Question& q) {
        return std::tuple(q.is_shared, is_long(q), q.is_shared ? q.context : q.longest, q.longest);
      };
      return key(a) > key(b);
    });
    return questions;
  }

  size_t end_of_batch(const std::vector<Question>& questions, size_t first) const {
    const auto& head = questions[first];
    int64_t answers = 0, longest = 0;
    size_t end = first;
    for (; end < questions.size(); ++end) {
      const auto& q = questions[end];
      if (q.is_shared != head.is_shared || is_long(q) != is_long(head)) break;
      // What contexts have more than the shortest is fed with each of their answers.
      if (q.is_shared && head.context - q.context > std::max<int64_t>(2, head.context / 32)) break;
      answers += static_cast<int64_t>(q.end - q.first);
      longest = std::max(longest, q.longest - (q.is_shared ? q.context - 1 : 0));
      const auto count = static_cast<int64_t>(end - first + 1);
      const int64_t tokens =
          q.is_shared ? std::max(count * head.context, answers * (longest + head.context - q.context)) : answers * longest;
      if (end > first && tokens > options_.pass_tokens) break;
    }
    return end;
  }

  void run_batch(std::span<const Question> questions) {
    int64_t prefix = 0;
    Caches caches;
    if (questions[0].is_shared) {
      prefix = std::min_element(questions.begin(), questions.end(), [](auto& a, auto& b) { return a.context < b.context; })->context - 1;
      caches.resize(static_cast<size_t>(model_.config().layers));
      std::vector<Ids> rows;
      for (const auto& q : questions) rows.emplace_back(pairs_[q.first].context.begin(), pairs_[q.first].context.begin() + prefix);
      forward(rows, 0, &caches);
      release_head();
    }
    const auto rows = rows_of(questions, prefix);
    // Answers of one pass are all rows of the batch, or as many as may be fed at once.
    const auto longest = static_cast<int64_t>(
        std::max_element(rows.begin(), rows.end(), [](auto& a, auto& b) { return a.ids.size() < b.ids.size(); })->ids.size());
    const auto at_once = static_cast<size_t>(std::max<int64_t>(1, options_.pass_tokens / std::max<int64_t>(1, longest)));
    for (size_t first = 0; first < rows.size(); first += at_once)
      score_rows(std::span(rows).subspan(first, std::min(at_once, rows.size() - first)), prefix, prefix > 0 ? &caches : nullptr);
  }

  std::vector<FedRow> rows_of(std::span<const Question> questions, int64_t prefix) const {
    std::vector<FedRow> rows;
    for (size_t question = 0; question < questions.size(); ++question) {
      std::map<Ids, size_t> known;
      for (size_t i = questions[question].first; i < questions[question].end; ++i) {
        Ids ids(pairs_[i].context.begin() + prefix, pairs_[i].context.end());
        ids.insert(ids.end(), pairs_[i].continuation.begin(), pairs_[i].continuation.end() - 1);
        const auto [found, is_new] = known.emplace(ids, rows.size());
        if (is_new) rows.push_back({std::move(ids), question});
        rows[found->second].pairs.push_back(i);
      }
    }
    return rows;
  }

  at::Tensor forward(const std::vector<Ids>& rows, int64_t offset, Caches* caches) {
    any_has_a_pass(true);
    return make_pass(rows, offset, caches);
  }

  // [rows, tokens, hidden]; the weights of the head stay until release_head().
  at::Tensor make_pass(const std::vector<Ids>& rows, int64_t offset, Caches* caches) {
    size_t longest = 0;
    for (const auto& row : rows) longest = std::max(longest, row.size());
    auto ids = at::zeros({static_cast<int64_t>(padded(rows.size())), static_cast<int64_t>(longest)}, at::kLong);
    for (size_t i = 0; i < rows.size(); ++i) std::copy(rows[i].begin(), rows[i].end(), ids.data_ptr<int64_t>() + i * longest);
    models::ForwardContext context;
    context.sequences = std::make_shared<layers::Sequences>(ids.size(0), ids.size(1), at::Tensor(), offset, model_.device());
    if (caches) context.caches = {caches};
    if (options_.ranks) context.hooks = options_.ranks->hooks;
    const auto hidden = model_.forward(device::to_device(ids, model_.device()), context);
    return model_.layout().tensor.enter(hidden, ids.size(0), ids.size(1));
  }

  // Where tensor ranks have slices of the tokens between layers, these are equal: rows of nothing behind the others see to that.
  size_t padded(size_t rows) const {
    const auto& tensor = model_.layout().tensor;
    const size_t multiple = tensor.is_on() && tensor.shards_tokens ? static_cast<size_t>(tensor.size) : 1;
    return (rows + multiple - 1) / multiple * multiple;
  }

  void release_head() const {
    if (options_.ranks && options_.ranks->hooks) options_.ranks->hooks->after_forward(model_.config().layers);
  }

  // [tokens, vocabulary] of [tokens, hidden].
  at::Tensor logits_of(const at::Tensor& hidden) const { return model_.logits(hidden.unsqueeze(0)).squeeze(0); }

  // What layers remember of some of a batch's rows, in storage of its own.
  Caches copied(const Caches& caches, const Ids& rows) const {
    const auto index = device::to_device(at::tensor(rows, at::kLong), model_.device());
    const auto of = [&](const at::Tensor& x) { return x.defined() ? x.index_select(0, index) : x; };
    Caches copies(caches.size());
    for (size_t i = 0; i < caches.size(); ++i) {
      const auto& from = caches[i];
      auto& into = copies[i];
      into.key_values = from.key_values.of_rows(index);
      into.tail = {of(from.tail.latent), of(from.tail.delayed_value)};
      into.linear = {of(from.linear.state), of(from.linear.tail)};
    }
    return copies;
  }

  void score_rows(std::span<const FedRow> rows, int64_t prefix, const Caches* caches) {
    std::vector<Ids> ids;
    Ids of_question;
    size_t longest = 0;
    for (const auto& row : rows) {
      ids.push_back(row.ids);
      of_question.push_back(static_cast<int64_t>(row.question));
      longest = std::max(longest, row.ids.size());
    }
    of_question.resize(padded(rows.size()), 0);
    Caches own;
    if (caches) own = copied(*caches, of_question);
    const auto hidden = forward(ids, prefix, caches ? &own : nullptr).flatten(0, 1);  // [rows * longest, hidden]
    // Each token's logits lie one place before it.
    std::vector<std::pair<size_t, int64_t>> wanted;  // pair, position
    for (size_t i = 0; i < rows.size(); ++i)
      for (const size_t pair : rows[i].pairs) {
        const size_t tokens = pairs_[pair].continuation.size();
        for (size_t t = 0; t < tokens; ++t) wanted.emplace_back(pair, static_cast<int64_t>(i * longest + rows[i].ids.size() - tokens + t));
      }
    score_tokens(hidden, wanted);
    release_head();
  }

  // fp32 logits of a slice of the tokens at a time: 64 MiB of them.
  void score_tokens(const at::Tensor& hidden, const std::vector<std::pair<size_t, int64_t>>& wanted) {
    const auto at_once = static_cast<size_t>(std::max<int64_t>(1, (int64_t{16} << 20) / model_.config().vocab_size));
    for (size_t first = 0; first < wanted.size(); first += at_once) {
      const auto slice = std::span(wanted).subspan(first, std::min(at_once, wanted.size() - first));
      Ids positions, targets;
      for (size_t i = 0; i < slice.size(); ++i) {
        const auto& [pair, position] = slice[i];
        auto& score = scores_[pair];
        if (score.of_tokens.empty()) score.is_greedy = true;
        positions.push_back(position);
        targets.push_back(pairs_[pair].continuation[score.of_tokens.size()]);
        score.of_tokens.push_back(0);
      }
      const auto to_model = [&](const Ids& values) { return device::to_device(at::tensor(values, at::kLong), model_.device()); };
      const auto logits = logits_of(hidden.index_select(0, to_model(positions)));  // [slice, vocab]
      const auto target = to_model(targets).unsqueeze(1);
      const auto log_p = (logits.gather(1, target).squeeze(1) - logits.logsumexp(1)).to(at::kCPU, at::kDouble);
      const auto is_best = (logits.argmax(1) == target.squeeze(1)).cpu();
      std::map<size_t, size_t> written;  // of pairs in this slice
      for (size_t i = slice.size(); i-- > 0;) {
        auto& score = scores_[slice[i].first];
        const double p = log_p.const_data_ptr<double>()[i];
        score.of_tokens[score.of_tokens.size() - 1 - written[slice[i].first]++] = static_cast<float>(p);
        score.log_likelihood += p;
        score.is_greedy = score.is_greedy && is_best.const_data_ptr<bool>()[i];
      }
    }
  }

  models::Model& model_;
  const std::vector<Pair>& pairs_;
  const ScoreOptions& options_;
  std::vector<PairScore> scores_;
  int64_t done_ = 0;
};

void check(const models::Model& model, const std::vector<Pair>& pairs) {
  if (model.config().bidirectional)
    throw base::ConfigError("the model is an encoder (model.bidirectional = true): it fills masks in, and tells no text's likelihood");
  if (model.layout().tensor_sequence.is_on() || model.layout().sequence.is_on() || model.layout().stage.is_on())
    throw base::ConfigError("evaluation scores with a model of one rank, or over a tensor axis");
  const int64_t vocabulary = model.config().vocab_size;
  for (const auto& pair : pairs) {
    if (pair.context.empty() || pair.continuation.empty()) throw base::DataError("a pair without a context or a continuation has no score");
    for (const auto* ids : {&pair.context, &pair.continuation})
      for (const int64_t id : *ids)
        if (id < 0 || id >= vocabulary)
          throw base::DataError("the tokenizer made id {}, beyond the model's vocabulary of {}: it is not this model's", id, vocabulary);
  }
}

}  // namespace

std::vector<PairScore> score_pairs(models::Model& model, const std::vector<Pair>& pairs, const ScoreOptions& options) {
  check(model, pairs);
  const at::NoGradGuard no_grad;
  return Scorer(model, pairs, options).run();
}

}  // namespace ingot::eval
