// Long prompts with something to be found in them, made by the program: each a pure function of its seed.
//   needle             a number that one sentence among many names (Kamradt, "Needle in a haystack", 2023)
//   multi_needle       several such numbers
//   variable_tracking  all names of a value that was handed from name to name (Hsieh et al., "RULER", arXiv 2404.06654, section 3)
//   common_words       the words of a list that are there most often (the same)
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ingot::eval {

struct Haystack {
  std::string prompt;
  std::vector<std::string> answers;
};

struct HaystackOptions {
  std::string kind = "needle";
  int64_t tokens = 512;  // of the prompt, at most
  double depth = 0.5;    // of a needle: 0 the beginning, 1 the end
  int64_t needles = 4;   // of multi_needle
  uint64_t seed = 0;
};

/// As long as `tokens_of` (the tokens of a text) lets it be. Throws ConfigError where the question alone is longer.
Haystack make_haystack(const HaystackOptions& options, const std::function<int64_t(const std::string&)>& tokens_of);

}  // namespace ingot::eval
