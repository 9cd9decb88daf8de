#include "serve/engine/engine.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>
#include <thread>

#include "serve/engine/drafts.h"
#include "serve/engine/news.h"
#include "serve/engine/prefix_cache.h"
#include "serve/engine/runner.h"

namespace ingot::serve {

namespace {

using kernels::kPageTokens;

// How a text ends; its reader hears of it when its place is free.
struct Outcome {
  Ended ended = Ended::not_yet;
  std::string why{};
  std::optional<Choice> last{};  // its last token, where it has one that was not told yet
};

// A text within the engine.
struct Running {
  int64_t serial = 0;  // of all texts
  TextRequest request;
  std::shared_ptr<Text> text;  // null on ranks that follow
  Sampler sampler;
  std::vector<int64_t> ids;  // the prompt, and what was made; the newest is not fed yet
  CachedText cached;
  bool has_begun = false;  // what earlier texts left was looked for
  int64_t border = 0;      // of a prompt: where a piece is to end, so that states can be kept
  States at_border;        // behind the newest whole page
  int64_t border_tokens = 0;
  std::optional<CachedText> drafter;  // of the draft model
  Lookup lookup;
  DraftLength draft_length;
  std::vector<int64_t> drafts;      // of the pass that is being made
  std::vector<int64_t> own_drafts;  // that the model has made in the last one
  Outcome outcome;

  Running(TextRequest asked, std::shared_ptr<Text> handle, const models::Model& model, int64_t most_drafts)
      : request(std::move(asked)),
        text(std::move(handle)),
        sampler(request.sampling, request.prompt),
        ids(request.prompt),
        cached(model.new_caches()),
        draft_length(most_drafts) {}

  int64_t prompt_tokens() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t most_tokens() const { return prompt_tokens() + request.most_tokens; }
  int64_t length() const { return static_cast<int64_t>(ids.size()); }
  int64_t made() const { return length() - prompt_tokens(); }
  int64_t pending() const { return length() - cached.fed; }  // tokens that are to be fed
  bool has_ended() const { return outcome.ended != Ended::not_yet; }
  // What others can leave for it: its last token has to be fed, for the logits behind it.
  std::span<const int64_t> reusable() const { return {ids.data(), ids.size() - 1}; }
};

int64_t whole_pages(int64_t tokens) { return tokens / kPageTokens * kPageTokens; }

// Whole pages in which two texts begin alike, in tokens.
int64_t shared_pages(std::span<const int64_t> a, std::span<const int64_t> b) {
  return whole_pages(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

struct Engine::State {
  const EngineOptions options;
  Runner runner;
  std::optional<Runner> draft_runner;
  PrefixCache prefixes;
  bool has_states = false;  // layers keep something beside keys and values; known when a page was whole
  // LongRoPE's factors go by the length of what is fed: the whole prompt in one piece.
  const bool reads_whole;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::unique_ptr<Running>> waiting;
  bool is_closed = false, is_ending = false;
  std::string failure;
  int64_t texts = 0;  // so far
  EngineCounts counts;

  std::vector<std::unique_ptr<Running>> running;  // of the engine's thread, the longest first
  std::thread thread;

  State(models::Model& model, EngineOptions chosen)
      : options(chosen),
        runner(model, chosen.weights, chosen.few_tokens),
        prefixes(chosen.most_kept_bytes),
        reads_whole(model.config().rope_scaling == "longrope") {
    if (chosen.draft_model) draft_runner.emplace(*chosen.draft_model, kernels::WeightFormat::fp32, chosen.few_tokens);
  }

  bool keeps_prefixes() const { return options.most_kept_bytes > 0 && !reads_whole; }
  bool makes_drafts() const { return (options.most_drafts > 0 || options.drafts_itself) && !reads_whole; }

  static bool is_cancelled(const Running& one) { return one.text && one.text->is_cancelled(); }
  bool leads() const { return !options.ranks || options.ranks->rank() == 0; }

  void run() {
    const at::NoGradGuard no_grad;
    try {
      while (meet_newcomers())
        if (!running.empty()) pass();
    } catch (const base::Error& lost) {
      if (!leads()) throw;
      const std::lock_guard lock(mutex);
      is_closed = true;
      failure = lost.what();
    }
    const std::lock_guard lock(mutex);
    const auto end = [&](Running& one) {
      if (one.text) one.text->end(failure.empty() ? Ended::cancelled : Ended::failed, failure);
    };
    for (auto& one : running) end(*one);
    for (auto& one : waiting) end(*one);
    waiting.clear();
    counts.running = counts.waiting = 0;
  }

  // Drops those whose readers have left and takes in what fits, on all ranks alike. False at the end.
  bool meet_newcomers() {
    News news;
    if (leads()) news = collect();
    if (options.ranks) news = read_news(comm::broadcast_text(*options.ranks, leads() ? write_news(news) : "", 0));
    if (!leads()) prefixes.drop(news.dropped_pages);
    for (auto& one : running)
      if (std::ranges::find(news.cancelled, one->serial) != news.cancelled.end()) one->outcome = {.ended = Ended::cancelled};
    if (!leads())
      for (auto& [serial, request] : news.begun) {
        running.push_back(std::make_unique<Running>(std::move(request), nullptr, runner.model(), options.most_drafts));
        running.back()->serial = serial;
      }
    remove_ended();
    return !news.is_ending;
  }

  // On the first rank, takes what fits from the queue; waits when there is nothing to do, but lets other ranks hear of it every second.
  News collect() {
    News news{.dropped_pages = prefixes.surplus()};
    prefixes.drop(news.dropped_pages);
    std::unique_lock lock(mutex);
    counts.kept_bytes = prefixes.bytes();
    const auto has_work = [&] { return is_ending || !waiting.empty() || !running.empty(); };
    if (options.ranks) changed.wait_for(lock, std::chrono::seconds(1), has_work);
    else changed.wait(lock, has_work);
    news.is_ending = is_ending;
    if (is_ending) return news;
    int64_t texts = 0, tokens = counts.cached_tokens;
    for (const auto& one : running) {
      if (is_cancelled(*one)) news.cancelled.push_back(one->serial), tokens -= one->most_tokens();
      else ++texts;
    }
    forget_cancelled();
    // The oldest first; none passes another.
    while (!waiting.empty() && texts < options.most_texts && tokens + waiting.front()->most_tokens() <= options.most_cached_tokens) {
      running.push_back(std::move(waiting.front()));
      waiting.pop_front();
      const auto& one = *running.back();
      ++texts, tokens += one.most_tokens(), counts.cached_tokens += one.most_tokens();
      if (options.ranks) news.begun.emplace_back(one.serial, one.request);
    }
    counts.waiting = static_cast<int64_t>(waiting.size());
    counts.running = static_cast<int64_t>(running.size());
    return news;
  }

  // Of those that wait; the mutex is held.
  void forget_cancelled() {
    for (const auto& one : waiting)
      if (is_cancelled(*one)) one->text->end(Ended::cancelled);
    std::erase_if(waiting, [](const auto& one) { return is_cancelled(*one); });
    counts.waiting = static_cast<int64_t>(waiting.size());
  }

  void pass() {
    std::vector<Running*> chosen;
    try {
      const auto pieces = choose(chosen);
      feed(chosen, pieces);
    } catch (const std::exception& failure) {
      for (auto* one : chosen) one->outcome = {.ended = Ended::failed, .why = failure.what()};
    }
    remove_ended();
  }

  // The next token of each text that has begun, and of the prompts as many as there is room for.
  std::vector<Piece> choose(std::vector<Running*>& chosen) {
    int64_t room = options.pass_tokens;
    for (const auto& one : running) room -= one->made() > 0 ? one->pending() : 0;
    std::vector<Piece> pieces;
    const auto take = [&](Running& one, int64_t tokens) {
      chosen.push_back(&one);
      const auto first = one.ids.begin() + one.cached.fed;
      pieces.push_back({.text = &one.cached, .ids = {first, first + tokens}, .rows = rows_wanted(one, tokens)});
    };
    for (auto& one : running) {
      if (one->made() > 0) {
        take(*one, one->pending());
      } else if (room > 0 && !waits_for(*one, chosen)) {
        begin(*one);
        int64_t tokens = reads_whole ? one->pending() : std::min(one->pending(), room);
        if (has_states && one->border > one->cached.fed) tokens = std::min(tokens, one->border - one->cached.fed);
        take(*one, tokens);
        room -= tokens;
      }
    }
    if (chosen.empty()) {  // pass_tokens below the number of texts
      auto& first = *running.front();
      begin(first);
      take(first, reads_whole ? first.pending() : 1);
    }
    if (makes_drafts()) options.drafts_itself ? draft_itself(chosen, pieces) : draft(chosen, pieces);
    return pieces;
  }

  // The logits of a row are of the token behind it; those of the last row of all are the next token's.
  static int64_t rows_wanted(const Running& one, int64_t tokens) {
    if (one.request.scores_prompt && one.made() == 0) return tokens;
    return tokens == one.pending() ? 1 : 0;
  }

  // Before a text's first piece: what others have left for it.
  void begin(Running& one) {
    if (one.has_begun || !keeps_prefixes()) return;
    one.has_begun = true;
    if (!one.request.scores_prompt) prefixes.begin(one.reusable(), one.cached);
    choose_border(one);
    const std::lock_guard lock(mutex);
    counts.reused_tokens += one.cached.fed;
  }

  // States are kept where another text went another way, and at the prompt's last whole page.
  void choose_border(Running& one) {
    const auto reusable = one.reusable();
    const int64_t fork = prefixes.shared(reusable);
    one.border = fork > one.cached.fed ? fork : whole_pages(static_cast<int64_t>(reusable.size()));
  }

  // Whether another that is being read will leave more of its prompt than there is now.
  bool waits_for(const Running& one, const std::vector<Running*>& chosen) const {
    if (one.has_begun || !keeps_prefixes() || one.request.scores_prompt) return false;
    const int64_t now = prefixes.usable(one.reusable());
    return std::ranges::any_of(chosen, [&](const Running* other) {
      if (other->made() > 0) return false;
      const int64_t alike = shared_pages(other->reusable(), one.reusable());
      return (!has_states ? alike : alike >= other->border ? other->border : 0) > now;
    });
  }

  void feed(const std::vector<Running*>& chosen, const std::vector<Piece>& pieces) {
    std::vector<int64_t> fed_before;
    EngineCounts more{.passes = 1};
    for (const auto* one : chosen) {
      if (one->made() == 0) more.prompt_tokens += static_cast<int64_t>(pieces[fed_before.size()].ids.size());
      fed_before.push_back(one->cached.fed);
    }
    auto logits = runner.run(pieces);
    for (size_t i = 0; i < chosen.size(); ++i) {
      auto& one = *chosen[i];
      const auto own = logits.first(static_cast<size_t>(pieces[i].rows * runner.vocabulary()));
      logits = logits.subspan(own.size());
      try {
        const int64_t length = one.length();
        take(one, fed_before[i], pieces[i].masks, own);
        more.text_tokens += one.length() - length;
        if (one.drafts.empty()) continue;
        const auto drafted = static_cast<int64_t>(one.drafts.size()), taken = one.length() - length - 1;
        more.drafted += drafted, more.drafts_taken += taken;
        one.draft_length.learn(drafted, taken);
        one.drafts.clear();
        if (one.drafter) one.drafter->forget_behind(one.length() - 1);
      } catch (const std::exception& failure) {
        one.outcome = {.ended = Ended::failed, .why = failure.what()};
      }
    }
    const std::lock_guard lock(mutex);
    counts.passes += more.passes, counts.prompt_tokens += more.prompt_tokens, counts.text_tokens += more.text_tokens;
    counts.drafted += more.drafted, counts.drafts_taken += more.drafts_taken;
  }

  // What a pass has made of a text that had fed `first` tokens before: logits of the last rows of its piece, behind which are `masks`.
  void take(Running& one, int64_t first, int64_t masks, std::span<const float> logits) {
    const auto next_row = [&] {
      const auto row = logits.first(static_cast<size_t>(runner.vocabulary()));
      logits = logits.subspan(row.size());
      return row;
    };
    const int64_t count = one.request.likeliest.value_or(0);
    if (one.made() == 0 && one.request.scores_prompt) {
      std::vector<Choice> scores;
      if (first == 0) scores.push_back({.id = one.request.prompt[0]});
      for (int64_t behind = first + 1; behind <= one.cached.fed && behind < one.prompt_tokens(); ++behind)
        scores.push_back(scored(next_row(), one.request.prompt[static_cast<size_t>(behind)], count));
      if (one.text) std::ranges::move(scores, std::back_inserter(one.text->prompt_scores_));
    }
    keep_pages(one, first);
    if (logits.empty()) return;
    if (one.request.most_tokens == 0) {
      one.outcome = {.ended = Ended::length};
      return;
    }
    const auto& stops = one.request.stop_ids;
    for (auto draft = one.drafts.begin();; ++draft) {
      const auto row = next_row();
      const int64_t id = one.sampler.choose(row, one.length());
      one.ids.push_back(id);
      const auto ended = std::ranges::find(stops, id) != stops.end() ? Ended::stop
                         : one.made() >= one.request.most_tokens     ? Ended::length
                                                                     : Ended::not_yet;
      auto choice = one.request.likeliest ? scored(row, id, count) : Choice{.id = id};
      if (ended != Ended::not_yet) {
        one.outcome = {.ended = ended, .last = std::move(choice)};
        break;
      }
      if (one.text) one.text->add(std::move(choice));
      if (draft == one.drafts.end() || *draft != id) break;
    }
    one.cached.forget_behind(one.length() - 1);
    if (masks > 0 && !one.has_ended()) take_own_drafts(one, logits);
  }

  // Logits of what the model drafts from the token on that it has chosen meanwhile: good for the next pass where it drafts that one, too.
  void take_own_drafts(Running& one, std::span<const float> logits) {
    const auto vocabulary = static_cast<size_t>(runner.vocabulary());
    for (int64_t position = one.length() - 1; !logits.empty(); ++position, logits = logits.subspan(vocabulary)) {
      const int64_t id = draw(logits.first(vocabulary), one.request.sampling, uniform_of(one.request.sampling.seed, position));
      if (position >= one.length()) one.own_drafts.push_back(id);
      else if (id != one.ids.back()) return;
    }
  }

  // Pages that are whole now stay for others; of layers with states only those that states are behind.
  void keep_pages(Running& one, int64_t first) {
    if (!keeps_prefixes()) return;
    const int64_t fed = one.cached.fed - static_cast<int64_t>(one.drafts.size()), pages = whole_pages(fed);
    if (pages <= whole_pages(first)) return;
    const std::span ids(one.ids.data(), static_cast<size_t>(pages));
    has_states = one.cached.has_states();
    if (!has_states) return prefixes.keep(ids, one.cached.caches, {});
    if (pages != one.cached.fed) return;
    if (one.made() == 0) {
      prefixes.keep(ids, one.cached.caches, States(one.cached.caches));
      choose_border(one);
    } else {
      one.at_border = States(one.cached.caches), one.border_tokens = pages;
    }
  }

  // Guesses behind pieces of texts that have begun, as many as the pass has room for.
  void draft(const std::vector<Running*>& chosen, std::vector<Piece>& pieces) {
    int64_t room = runner.few_tokens();
    for (const auto& piece : pieces) room -= static_cast<int64_t>(piece.ids.size());
    std::vector<std::pair<size_t, int64_t>> wanted;  // of the chosen, and how many
    for (size_t i = 0; i < chosen.size(); ++i) {
      auto& one = *chosen[i];
      const int64_t useful = one.request.most_tokens - one.made() - 1;  // the pass makes one more token than it takes drafts
      // States that were taken back have more than one token to be fed again first.
      if (one.made() == 0 || (one.pending() > 1 && one.cached.has_whole_states()) || useful < 1 || room < 1) continue;
      const int64_t most = std::min({one.draft_length.next(), useful, room});
      if (most < 1) continue;
      wanted.emplace_back(i, most);
      room -= most;
    }
    if (draft_runner) guess(chosen, wanted);
    for (const auto& [i, most] : wanted) {
      auto& one = *chosen[i];
      if (!draft_runner) one.drafts = one.lookup.drafts(one.ids, most);
      if (one.drafts.empty()) continue;
      if (one.cached.has_whole_states()) one.cached.remember_states();
      pieces[i].ids.insert(pieces[i].ids.end(), one.drafts.begin(), one.drafts.end());
      pieces[i].rows += static_cast<int64_t>(one.drafts.size());
    }
  }

  // What the model has drafted itself, or masks in whose place it does.
  void draft_itself(const std::vector<Running*>& chosen, std::vector<Piece>& pieces) {
    for (size_t i = 0; i < chosen.size(); ++i) {
      auto& one = *chosen[i];
      auto& piece = pieces[i];
      const int64_t useful = one.request.most_tokens - one.made() - 1;
      if (static_cast<int64_t>(piece.ids.size()) < one.pending() || useful < 1) continue;
      one.drafts = std::exchange(one.own_drafts, {});
      if (static_cast<int64_t>(one.drafts.size()) > useful) one.drafts.resize(static_cast<size_t>(useful));
      const auto& config = runner.model().config();
      if (one.drafts.empty())
        piece.masks = config.draft_block, piece.ids.resize(piece.ids.size() + config.draft_block, config.draft_mask_id);
      else piece.ids.insert(piece.ids.end(), one.drafts.begin(), one.drafts.end());
      piece.rows += piece.masks + static_cast<int64_t>(one.drafts.size());
    }
  }

  // By the draft model: token after token of all texts that want one, drawn as the texts' own would be.
  void guess(const std::vector<Running*>& chosen, std::vector<std::pair<size_t, int64_t>> wanted) {
    for (const auto& [i, most] : wanted) catch_up(*chosen[i]);
    const auto vocabulary = static_cast<size_t>(draft_runner->vocabulary());
    while (!wanted.empty()) {
      std::vector<Piece> pieces;
      for (const auto& [i, most] : wanted) {
        auto& one = *chosen[i];
        auto& piece = pieces.emplace_back(Piece{.text = &*one.drafter, .ids = {}, .rows = 1});
        if (one.drafts.empty()) piece.ids.assign(one.ids.begin() + one.drafter->fed, one.ids.end());
        else piece.ids.push_back(one.drafts.back());
      }
      auto logits = draft_runner->run(pieces);
      for (const auto& [i, most] : wanted) {
        auto& one = *chosen[i];
        if (one.drafts.empty()) one.drafter->remember_states();
        const auto position = one.length() + static_cast<int64_t>(one.drafts.size());
        one.drafts.push_back(draw(logits.first(vocabulary), one.request.sampling, uniform_of(one.request.sampling.seed, position)));
        logits = logits.subspan(vocabulary);
      }
      std::erase_if(wanted, [&](const auto& item) { return static_cast<int64_t>(chosen[item.first]->drafts.size()) >= item.second; });
    }
  }

  // All but the last tokens that fit into one pass of the draft model.
  void catch_up(Running& one) {
    if (!one.drafter) one.drafter.emplace(draft_runner->model().new_caches());
    auto& own = *one.drafter;
    while (one.length() - own.fed > options.pass_tokens) {
      const auto from = one.ids.begin() + own.fed;
      const Piece piece{.text = &own, .ids = {from, from + options.pass_tokens}};
      draft_runner->run({&piece, 1});
    }
  }

  void remove_ended() {
    std::vector<std::unique_ptr<Running>> ended;
    for (auto& one : running)
      if (one->has_ended()) ended.push_back(std::move(one));
    if (ended.empty()) return;
    std::erase(running, nullptr);
    for (const auto& one : ended)
      if (!one->at_border.empty() && one->outcome.ended != Ended::failed)
        prefixes.keep({one->ids.data(), static_cast<size_t>(one->border_tokens)}, one->cached.caches, one->at_border);
    {
      const std::lock_guard lock(mutex);
      for (const auto& one : ended) counts.cached_tokens -= one->most_tokens(), ++counts.finished;
      counts.running = static_cast<int64_t>(running.size());
    }
    for (const auto& one : ended)
      if (one->text) one->text->end(one->outcome.ended, std::move(one->outcome.why), std::move(one->outcome.last));
  }
};

void Engine::require_continues(const models::Model& model, const EngineOptions& options) {
  if (model.config().bidirectional)
    throw base::ConfigError("the model is an encoder (model.bidirectional = true): it fills masks in, and does not continue a text");
  const auto& layout = model.layout();
  const bool folds = layout.tensor_sequence.is_on();
  if ((layout.sequence.is_on() && !folds) || layout.stage.is_on())
    throw base::ConfigError("the engine continues texts on one rank, or over a tensor, a tensor_sequence or an expert axis");
  if ((layout.tensor.is_on() || layout.experts.is_on() || folds) && !options.ranks)
    throw base::ConfigError("the model lies on several ranks, of which the engine knows nothing");
  if (options.drafts_itself && (model.config().draft_block == 0 || folds))
    throw base::ConfigError("a model drafts itself with model.draft_block > 0, on one rank or over a tensor or an expert axis");
  if (options.drafts_itself && (options.draft_model || options.most_drafts > 0))
    throw base::ConfigError("tokens are guessed by the model itself, or otherwise: not both");
  if (!options.draft_model) return;
  const auto& drafts = options.draft_model->config();
  if (drafts.vocab_size != model.config().vocab_size)
    throw base::ConfigError("the draft model knows {} tokens, the model {}; drafts need a model with the same tokenizer", drafts.vocab_size,
                            model.config().vocab_size);
  if (drafts.bidirectional)
    throw base::ConfigError("the draft model is an encoder (model.bidirectional = true): it does not continue a text");
}

Engine::Engine(models::Model& model, EngineOptions options) {
  require_continues(model, options);
  state_ = std::make_unique<State>(model, options);
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

void Engine::follow(models::Model& model, const EngineOptions& options) {
  require_continues(model, options);
  State(model, options).run();
}

Engine::~Engine() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_closed = state_->is_ending = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

namespace {

void check(const TextRequest& request, const models::ModelConfig& config, const EngineOptions& options) {
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  if (tokens == 0) throw base::UsageError("the prompt has no tokens");
  for (const int64_t id : request.prompt)
    if (id < 0 || id >= config.vocab_size)
      throw base::UsageError("the prompt has the id {}, beyond the model's vocabulary of {}", id, config.vocab_size);
  if (request.most_tokens < 0 || tokens + request.most_tokens > options.most_cached_tokens)
    throw base::UsageError("{} tokens of a prompt and {} new ones are more than the {} that fit into the cache", tokens,
                           request.most_tokens, options.most_cached_tokens);
  if (config.rope_scaling == "longrope" && tokens <= config.rope_original_positions &&
      tokens + request.most_tokens > config.rope_original_positions)
    throw base::UsageError(
        "a text of this prompt cannot grow beyond {} tokens, from which on longrope turns earlier keys otherwise; ask for fewer new ones",
        config.rope_original_positions);
}

}  // namespace

std::shared_ptr<Text> Engine::submit(TextRequest request) {
  std::vector<TextRequest> one;
  one.push_back(std::move(request));
  return submit_all(std::move(one))[0];
}

std::vector<std::shared_ptr<Text>> Engine::submit_all(std::vector<TextRequest> requests) {
  const auto& config = state_->runner.model().config();
  const auto& options = state_->options;
  if (static_cast<int64_t>(requests.size()) > options.most_texts + options.most_waiting)
    throw base::UsageError("{} texts are more than the {} that can be under way and waiting", requests.size(),
                           options.most_texts + options.most_waiting);
  const auto changes = std::make_shared<Changes>();
  std::vector<std::shared_ptr<Text>> texts;
  std::vector<std::unique_ptr<Running>> all;
  for (auto& request : requests) {
    check(request, config, options);
    texts.push_back(std::make_shared<Text>(changes));
    all.push_back(std::make_unique<Running>(std::move(request), texts.back(), state_->runner.model(), options.most_drafts));
  }
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->failure.empty()) throw BusyError(state_->failure);
    if (state_->is_closed) throw BusyError("the server is stopping");
    state_->forget_cancelled();
    // Places that are free now count, too.
    const int64_t room = options.most_waiting + options.most_texts - state_->counts.running - state_->counts.waiting;
    if (static_cast<int64_t>(all.size()) > room)
      throw BusyError(fmt::format("{} texts are under way or waiting already", state_->counts.running + state_->counts.waiting));
    for (auto& one : all) {
      one->serial = ++state_->texts;
      state_->waiting.push_back(std::move(one));
    }
    state_->counts.waiting = static_cast<int64_t>(state_->waiting.size());
  }
  state_->changed.notify_all();
  return texts;
}

void Engine::close() {
  const std::lock_guard lock(state_->mutex);
  state_->is_closed = true;
}

std::string Engine::failure() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failure;
}

EngineCounts Engine::counts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counts;
}

}  // namespace ingot::serve
