#include "eval/write_texts.h"

#include <algorithm>

#include "base/error.h"
#include "serve/api/text_so_far.h"
#include "serve/engine/engine.h"

namespace ingot::eval {
namespace {

constexpr size_t kAtOnce = 64;

struct UnderWay {
  size_t index;
  std::shared_ptr<serve::Text> text;
  serve::TextSoFar so_far;
};

}  // namespace

std::vector<Written> write_texts(models::Model& model, const data::Tokenizer& tokenizer, const std::vector<Prompt>& prompts,
                                 const std::vector<std::string>& until, const std::function<void(int64_t)>& progress) {
  using std::chrono::milliseconds;
  int64_t longest = 0, done = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, static_cast<int64_t>(prompt.ids.size()) + prompt.most_tokens);
  serve::EngineOptions options;
  options.most_texts = kAtOnce;
  options.most_cached_tokens = std::max(options.most_cached_tokens, longest);
  serve::Engine engine(model, options);
  std::vector<Written> all(prompts.size());
  std::vector<std::unique_ptr<UnderWay>> under_way;
  for (size_t next = 0; next < prompts.size() || !under_way.empty();) {
    while (next < prompts.size() && under_way.size() < kAtOnce) {
      const auto& prompt = prompts[next];
      serve::TextRequest request{.prompt = prompt.ids, .most_tokens = prompt.most_tokens};
      if (tokenizer.special().eos >= 0) request.stop_ids = {tokenizer.special().eos};
      request.sampling.temperature = prompt.temperature;
      request.sampling.seed = prompt.seed;
      auto text = engine.submit(std::move(request));
      under_way.push_back(std::make_unique<UnderWay>(UnderWay{next, std::move(text), serve::TextSoFar(tokenizer, until, prompt.ids)}));
      ++next;
    }
    const auto* first = under_way.front().get();
    std::erase_if(under_way, [&](const std::unique_ptr<UnderWay>& held) {
      auto& one = *held;
      // One of them is waited for, so that this thread does not spin.
      const auto news = one.text->wait(milliseconds(&one == first ? 2 : 0));
      auto& written = all[one.index];
      for (const auto& token : news.tokens) {
        if (one.so_far.is_stopped()) break;
        ++written.tokens;
        if (token.id != tokenizer.special().eos) written.text += one.so_far.push(token.id);
      }
      if (news.ended == serve::Ended::failed)
        throw base::ModelError("text {} of {} could not be written: {}", one.index + 1, prompts.size(), one.text->failure());
      if (one.so_far.is_stopped()) one.text->cancel();
      const bool has_ended = one.so_far.is_stopped() || news.ended != serve::Ended::not_yet;
      if (has_ended) written.text += one.so_far.finish();
      if (has_ended && progress) progress(++done);
      return has_ended;
    });
  }
  return all;
}

bool cut_prompt(std::vector<int64_t>& ids, int64_t context, int64_t most_tokens) {
  const int64_t room = context - most_tokens;
  if (room < 1)
    throw base::ConfigError("most_tokens = {} leaves no room for a prompt in the {} tokens that the model sees; lower it", most_tokens,
                            context);
  if (static_cast<int64_t>(ids.size()) <= room) return false;
  ids.erase(ids.begin(), ids.end() - room);
  return true;
}

}  // namespace ingot::eval
