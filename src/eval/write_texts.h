// What a model writes behind prompts, many at once, until a text that ends it.
#pragma once

#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "eval/evaluate.h"
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

/// In the order of the prompts. Of the options progress (of texts done), ranks and checks_alone count. Throws ModelError for a text that
/// could not be written.
std::vector<Written> write_texts(models::Model& model, const data::Tokenizer& tokenizer, const std::vector<Prompt>& prompts,
                                 const std::vector<std::string>& until, const Options& options);

/// Of a prompt that leaves room for what is written, cut from the left; true where it was. Throws ConfigError where there is no room.
bool cut_prompt(std::vector<int64_t>& ids, int64_t context, int64_t most_tokens);

}  // namespace ingot::eval
