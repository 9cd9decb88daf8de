// What is asked of the engine, and a text that it continues.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "serve/engine/changes.h"
#include "serve/engine/sampler.h"

namespace ingot::serve {

struct TextRequest {
  std::vector<int64_t> prompt;
  int64_t most_tokens = 16;         // new ones; 0: the prompt's scores alone
  std::vector<int64_t> stop_ids{};  // each ends the text, and is its last token
  SamplingOptions sampling{};
  std::optional<int64_t> likeliest{};  // log-probabilities are wanted, and of so many other tokens
  bool scores_prompt = false;          // those of the prompt's tokens, too
};

enum class Ended { not_yet, stop, length, cancelled, failed };

/// A text that is being continued: the engine's thread writes, its reader waits.
class Text {
 public:
  explicit Text(std::shared_ptr<Changes> changes) : changes_(std::move(changes)) {}

  struct News {
    std::vector<Choice> tokens;  // new ones since the last time
    Ended ended = Ended::not_yet;
  };
  /// Waits for a new token or the end, no longer than `most`.
  News wait(std::chrono::milliseconds most);
  /// Of all texts that were submitted together.
  const Changes& changes() const { return *changes_; }
  /// The engine drops the text with its next pass.
  void cancel();

  /// Of the prompt, of which the first has no log-probability; complete once there is a first token, or an end.
  const std::vector<Choice>& prompt_scores() const { return prompt_scores_; }
  /// Why it failed.
  std::string failure() const;

 private:
  friend class Engine;
  void add(Choice choice);
  void end(Ended how, std::string why = "", std::optional<Choice> last = {});
  bool is_cancelled() const;

  const std::shared_ptr<Changes> changes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Choice> new_, prompt_scores_;
  Ended ended_ = Ended::not_yet;
  bool is_cancelled_ = false;
  std::string failure_;
};

}  // namespace ingot::serve
