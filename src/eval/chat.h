// A question as a conversation, in the text that a model's chat template makes of it, as lm-evaluation-harness 0.4.13 does with
// --apply_chat_template (lm_eval/api/task.py, models/huggingface.py). Immutable; the template must outlive it.
#pragma once

#include <string>
#include <vector>

namespace ingot::data::chat {
class ChatTemplate;
}

namespace ingot::eval {

struct Example {
  std::string question, answer;
};

class Chat {
 public:
  /// `has_turns`: each example is a message of the user's and the model's answer; else all are in one message with the question. `system`:
  /// before a task's description, in the message of the system.
  Chat(const data::chat::ChatTemplate& chat_template, bool has_turns, std::string system)
      : template_(chat_template), has_turns_(has_turns), system_(std::move(system)) {}

  struct Prompt {
    std::string text;
    bool is_without_system = false;  // the template refuses such a message, and it was left out
  };
  /// `delimiter` and `separator`: as they are without a template, within one message. Throws DataError for what the template refuses.
  Prompt prompt(const std::string& description, const std::vector<Example>& examples, const std::string& question,
                const std::string& delimiter, const std::string& separator) const;

 private:
  const data::chat::ChatTemplate& template_;
  bool has_turns_;
  std::string system_;
};

}  // namespace ingot::eval
