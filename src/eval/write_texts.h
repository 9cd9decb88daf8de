// What a model writes behind prompts, many at once, until a text that ends it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "models/model.h"

namespace ingot::eval {

struct Prompt {
  std::vector<int64_t> ids;
  int64_t most_tokens = 0;
  double temperature = 0;
  uint64_t seed = 0;
};

struct Written {
  std::string text;  // without what ended it
  int64_t tokens = 0;
};

/// In the order of the prompts. `progress`: of texts done; may be empty. Throws ModelError for a text that could not be written.
std::vector<Written> write_texts(models::Model& model, const data::Tokenizer& tokenizer, const std::vector<Prompt>& prompts,
                                 const std::vector<std::string>& until, const std::function<void(int64_t)>& progress);

/// Of a prompt that leaves room for what is written, cut from the left; true where it was. Throws ConfigError where there is no room.
bool cut_prompt(std::vector<int64_t>& ids, int64_t context, int64_t most_tokens);

}  // namespace ingot::eval
