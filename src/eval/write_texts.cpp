#include "eval/write_texts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

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

std::vector<Written> written_here(models::Model& model, const data::Tokenizer& tokenizer, const std::vector<Prompt>& prompts,
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

// What a rank tells the others: its texts, or why there are none.
std::string packed(const std::function<std::vector<Written>()>& write) {
  auto texts = nlohmann::json::array();
  try {
    for (auto& one : write()) texts.push_back({nlohmann::json::binary({one.text.begin(), one.text.end()}), one.tokens});
  } catch (const base::Error& failure) {
    texts = failure.what();
  }
  const auto bytes = nlohmann::json::to_cbor(texts);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

std::vector<Written> write_texts(models::Model& model, const data::Tokenizer& tokenizer, const std::vector<Prompt>& prompts,
                                 const std::vector<std::string>& until, const Options& options) {
  if (options.checks_alone) return std::vector<Written>(prompts.size());
  if (!options.ranks || !options.ranks->deals()) return written_here(model, tokenizer, prompts, until, options.progress);
  auto& group = *options.ranks->dealt;
  const auto size = static_cast<size_t>(group.size());
  std::vector<Prompt> own;
  for (auto i = static_cast<size_t>(group.rank()); i < prompts.size(); i += size) own.push_back(prompts[i]);
  const auto gathered = comm::gather_texts(group, packed([&] { return written_here(model, tokenizer, own, until, options.progress); }), 0);
  std::vector<Written> all(prompts.size());
  for (size_t rank = 0; rank < size; ++rank) {
    const auto texts = nlohmann::json::from_cbor(comm::broadcast_text(group, gathered.empty() ? "" : gathered[rank], 0));
    if (texts.is_string()) throw base::ModelError("{} (data rank {})", texts.get<std::string>(), rank);
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto& text = texts[i][0].get_binary();
      all[rank + i * size] = {{text.begin(), text.end()}, texts[i][1].get<int64_t>()};
    }
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
