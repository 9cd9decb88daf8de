#include "serve/engine/engine.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>
#include <thread>

#include "device/device.h"
#include "serve/generate.h"

namespace ingot::serve {

Text::News Text::wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, most, [&] { return !new_.empty() || ended_ != Ended::not_yet; });
  News news{std::move(new_), ended_};
  new_.clear();
  return news;
}

void Text::cancel() {
  const std::lock_guard lock(mutex_);
  is_cancelled_ = true;
}

std::string Text::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Text::add(Choice choice, Ended ended) {
  {
    const std::lock_guard lock(mutex_);
    new_.push_back(std::move(choice));
    ended_ = ended;
  }
  changed_.notify_all();
  changes_->tell();
}

void Text::end(Ended how, std::string why) {
  {
    const std::lock_guard lock(mutex_);
    ended_ = how;
    failure_ = std::move(why);
  }
  changed_.notify_all();
  changes_->tell();
}

bool Text::is_cancelled() const {
  const std::lock_guard lock(mutex_);
  return is_cancelled_;
}

namespace {

// A text within the engine.
struct Running {
  TextRequest request;
  std::shared_ptr<Text> text;
  Sampler sampler;
  std::vector<models::LayerCache> caches;  // by layer
  int64_t fed = 0;                         // tokens that the caches have
  int64_t made = 0;                        // new tokens
  int64_t last = -1;                       // the newest, which is not fed yet
  int64_t passes_now = 0;                  // tokens in the pass that is being made; -1: it has ended
  int64_t first_row = 0;                   // of the pass, among those whose logits are wanted

  Running(TextRequest asked, std::shared_ptr<Text> handle, int64_t layers)
      : request(std::move(asked)),
        text(std::move(handle)),
        sampler(request.sampling, request.prompt),
        caches(static_cast<size_t>(layers)) {}

  int64_t prompt_tokens() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t most_tokens() const { return prompt_tokens() + request.most_tokens; }
  bool reads_prompt() const { return fed < prompt_tokens(); }
};

}  // namespace

struct Engine::State {
  models::Model& model;
  const EngineOptions options;
  const std::unique_ptr<models::decode::Decoder> decoder;  // null where there is none for the model

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::unique_ptr<Running>> waiting;
  bool is_closed = false, is_ending = false;
  EngineCounts counts;

  std::vector<std::unique_ptr<Running>> running;  // of the engine's thread, the longest first
  std::thread thread;

  State(models::Model& continued, EngineOptions chosen)
      : model(continued), options(chosen), decoder(make_decoder(continued, chosen.weights)) {}

  void run() {
    const at::NoGradGuard no_grad;
    for (;;) {
      drop_cancelled();
      if (!admit()) break;
      if (!running.empty()) pass();
    }
    for (auto& one : running) one->text->end(Ended::cancelled);
    const std::lock_guard lock(mutex);
    for (auto& one : waiting) one->text->end(Ended::cancelled);
  }

  void drop_cancelled() {
    for (auto& one : running)
      if (one->text->is_cancelled()) end(*one, Ended::cancelled);
    remove_ended();
  }

  // Takes what fits from the queue, the oldest first; waits when there is nothing to do. False at the end.
  bool admit() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return is_ending || !waiting.empty() || !running.empty(); });
    if (is_ending) return false;
    forget_cancelled();
    while (!waiting.empty() && static_cast<int64_t>(running.size()) < options.most_texts) {
      auto& next = waiting.front();
      if (counts.cached_tokens + next->most_tokens() > options.most_cached_tokens) break;
      counts.cached_tokens += next->most_tokens();
      running.push_back(std::move(next));
      waiting.pop_front();
    }
    counts.waiting = static_cast<int64_t>(waiting.size());
    counts.running = static_cast<int64_t>(running.size());
    return true;
  }

  // Of those that wait; the mutex is held.
  void forget_cancelled() {
    for (const auto& one : waiting)
      if (one->text->is_cancelled()) one->text->end(Ended::cancelled);
    std::erase_if(waiting, [](const auto& one) { return one->text->is_cancelled(); });
    counts.waiting = static_cast<int64_t>(waiting.size());
  }

  // One token of each text that has begun, and of the prompts as many as there is room for.
  std::vector<Running*> choose() {
    int64_t room = options.pass_tokens;
    for (const auto& one : running) room -= one->reads_prompt() ? 0 : 1;
    std::vector<Running*> chosen;
    // LongRoPE's factors go by the length of what is fed: the whole prompt in one piece.
    const bool reads_whole = model.config().rope_scaling == "longrope";
    for (auto& one : running) {
      const int64_t left = one->prompt_tokens() - one->fed;
      one->passes_now = !one->reads_prompt()      ? 1
                        : reads_whole && room > 0 ? left
                                                  : std::clamp<int64_t>(left, 0, std::max<int64_t>(room, 0));
      if (one->reads_prompt()) room -= one->passes_now;
      if (one->passes_now > 0) chosen.push_back(one.get());
    }
    if (!chosen.empty()) return chosen;
    auto* first = running.front().get();  // pass_tokens below the number of texts
    first->passes_now = reads_whole ? first->prompt_tokens() - first->fed : 1;
    return {first};
  }

  void pass() {
    const auto chosen = choose();
    try {
      feed(chosen);
    } catch (const std::exception& failure) {
      for (auto* one : chosen) end(*one, Ended::failed, failure.what());
    }
    remove_ended();
  }

  void feed(const std::vector<Running*>& chosen) {
    models::ForwardContext context;
    std::vector<layers::Sequences::Length> lengths;
    std::vector<int64_t> ids, rows;  // rows: of the pass, whose logits are wanted
    int64_t prompt_tokens = 0;
    for (auto* one : chosen) {
      lengths.push_back({.tokens = one->passes_now, .offset = one->fed});
      one->first_row = static_cast<int64_t>(rows.size());
      context.caches.push_back(&one->caches);
      const auto first = static_cast<int64_t>(ids.size());
      if (one->reads_prompt()) {
        const auto begin = one->request.prompt.begin() + one->fed;
        ids.insert(ids.end(), begin, begin + one->passes_now);
        prompt_tokens += one->passes_now;
      } else {
        ids.push_back(one->last);
      }
      const bool is_whole = one->fed + one->passes_now >= one->prompt_tokens();
      const auto end = first + one->passes_now;
      for (int64_t row = one->request.scores_prompt && one->reads_prompt() ? first : is_whole ? end - 1 : end; row < end; ++row)
        rows.push_back(row);
    }
    at::Tensor kept;
    const float* const logits = logits_of(lengths, ids, rows, context, kept);
    const auto vocabulary = static_cast<size_t>(model.config().vocab_size);
    for (auto* one : chosen) try {
        take(*one, [&, row = one->first_row]() mutable {
          return std::span<const float>(logits + static_cast<size_t>(row++) * vocabulary, vocabulary);
        });
      } catch (const std::exception& failure) {
        end(*one, Ended::failed, failure.what());
      }
    const std::lock_guard lock(mutex);
    ++counts.passes;
    counts.prompt_tokens += prompt_tokens;
  }

  // Of the tokens that `rows` names, [rows, vocabulary] on the host. `kept` holds them where it has to.
  const float* logits_of(const std::vector<layers::Sequences::Length>& lengths, const std::vector<int64_t>& ids,
                         const std::vector<int64_t>& rows, models::ForwardContext& context, at::Tensor& kept) {
    if (decoder && static_cast<int64_t>(ids.size()) <= options.few_tokens) return decoder->run(lengths, ids, context.caches, rows);
    context.sequences = layers::Sequences::side_by_side(lengths, model.device());
    const auto to_model = [&](const std::vector<int64_t>& values) {
      return device::to_device(at::tensor(values, at::kLong), model.device());
    };
    const auto hidden = model.forward(to_model(ids).unsqueeze(0), context);
    if (rows.empty()) return nullptr;
    kept = model.logits(hidden.index_select(1, to_model(rows))).squeeze(0).to(at::kCPU, at::kFloat).contiguous();
    return kept.const_data_ptr<float>();
  }

  template <class NextRow>
  void take(Running& one, NextRow next_row) {
    const bool read_prompt = one.reads_prompt(), scores = read_prompt && one.request.scores_prompt;
    const int64_t first = one.fed;
    one.fed += one.passes_now;
    if (one.reads_prompt() && !scores) return;
    const int64_t count = one.request.likeliest.value_or(0);
    // A row's logits are of the token behind it.
    for (int64_t i = 0; scores && i < one.passes_now; ++i) {
      const int64_t behind = first + i + 1;
      if (first + i == 0) one.text->prompt_scores_.push_back({.id = one.request.prompt[0]});
      if (behind == one.prompt_tokens()) break;
      one.text->prompt_scores_.push_back(scored(next_row(), one.request.prompt[static_cast<size_t>(behind)], count));
    }
    if (one.reads_prompt()) return;
    const auto logits = next_row();
    if (one.request.most_tokens == 0) return end(one, Ended::length);
    one.last = one.sampler.choose(logits, one.fed);
    ++one.made;
    const auto& stops = one.request.stop_ids;
    const auto ended = std::find(stops.begin(), stops.end(), one.last) != stops.end() ? Ended::stop
                       : one.made >= one.request.most_tokens                          ? Ended::length
                                                                                      : Ended::not_yet;
    one.text->add(one.request.likeliest ? scored(logits, one.last, count) : Choice{.id = one.last}, ended);
    if (ended != Ended::not_yet) one.passes_now = -1;
    const std::lock_guard lock(mutex);
    ++counts.text_tokens;
  }

  void end(Running& one, Ended how, std::string why = "") {
    one.text->end(how, std::move(why));
    one.passes_now = -1;
  }

  void remove_ended() {
    const std::lock_guard lock(mutex);
    for (const auto& one : running)
      if (one->passes_now < 0) counts.cached_tokens -= one->most_tokens(), ++counts.finished;
    std::erase_if(running, [](const auto& one) { return one->passes_now < 0; });
    counts.running = static_cast<int64_t>(running.size());
  }
};

Engine::Engine(models::Model& model, EngineOptions options) {
  if (model.config().bidirectional)
    throw base::ConfigError("the model is an encoder (model.bidirectional = true): it fills masks in, and does not continue a text");
  if (model.layout().tensor_sequence.is_on() || model.layout().sequence.is_on() || model.layout().stage.is_on())
    throw base::ConfigError("the engine continues texts on one rank, or over a tensor axis");
  state_ = std::make_unique<State>(model, options);
  state_->thread = std::thread([state = state_.get()] { state->run(); });
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
  const auto& config = state_->model.config();
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
    all.push_back(std::make_unique<Running>(std::move(request), texts.back(), config.layers));
  }
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->is_closed) throw BusyError("the server is stopping");
    state_->forget_cancelled();
    // Places that are free now count, too.
    const int64_t room = options.most_waiting + options.most_texts - state_->counts.running - state_->counts.waiting;
    if (static_cast<int64_t>(all.size()) > room)
      throw BusyError(fmt::format("{} texts are under way or waiting already", state_->counts.running + state_->counts.waiting));
    for (auto& one : all) state_->waiting.push_back(std::move(one));
    state_->counts.waiting = static_cast<int64_t>(state_->waiting.size());
  }
  state_->changed.notify_all();
  return texts;
}

void Engine::close() {
  const std::lock_guard lock(state_->mutex);
  state_->is_closed = true;
}

EngineCounts Engine::counts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counts;
}

}  // namespace ingot::serve
