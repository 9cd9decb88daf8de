#include "data/tiktoken_encodings.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace ingot::data {
namespace {

// openai/tiktoken, tiktoken_ext/openai_public.py.
constexpr const char* kR50k = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)";
constexpr const char* kCl100k =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// meta-llama/llama3, llama/tokenizer.py.
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// QwenLM/Qwen, tokenization_qwen.py.
constexpr const char* kQwen =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr int64_t kLlama3Ranks = 128'000;

struct Named {
  const char* name;
  const char* pattern;
  std::map<std::string, int64_t> special_tokens;
};

const std::vector<Named>& named() {
  static const std::vector<Named> all = {{"gpt2", kR50k, {{"<|endoftext|>", 50256}}},
                                         {"r50k_base", kR50k, {{"<|endoftext|>", 50256}}},
                                         {"p50k_base", kR50k, {{"<|endoftext|>", 50256}}},
                                         {"cl100k_base",
                                          kCl100k,
                                          {{"<|endoftext|>", 100257},
                                           {"<|fim_prefix|>", 100258},
                                           {"<|fim_middle|>", 100259},
                                           {"<|fim_suffix|>", 100260},
                                           {"<|endofprompt|>", 100276}}},
                                         {"o200k_base", kO200k, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}}};
  return all;
}

TiktokenEncoding behind_ranks(const char* pattern, const std::vector<std::string>& names, int64_t ranks) {
  TiktokenEncoding encoding{pattern, {}};
  for (const auto& name : names) encoding.special_tokens.emplace(name, ranks + static_cast<int64_t>(encoding.special_tokens.size()));
  return encoding;
}

TiktokenEncoding llama3(int64_t ranks) {
  const auto reserved = [](int number) { return "<|reserved_special_token_" + std::to_string(number) + "|>"; };
  std::vector<std::string> names = {"<|begin_of_text|>", "<|end_of_text|>",     reserved(0),         reserved(1), reserved(2),
                                    reserved(3),         "<|start_header_id|>", "<|end_header_id|>", reserved(4), "<|eot_id|>"};
  for (int number = 5; number < 251; ++number) names.push_back(reserved(number));
  return behind_ranks(kLlama3, names, ranks);
}

TiktokenEncoding qwen(int64_t ranks) {
  std::vector<std::string> names = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  for (int number = 0; number < 205; ++number) names.push_back("<|extra_" + std::to_string(number) + "|>");
  return behind_ranks(kQwen, names, ranks);
}

}  // namespace

std::optional<TiktokenEncoding> known_encoding(std::string_view file_name, int64_t ranks) {
  std::string name(file_name.substr(0, file_name.rfind('.')));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const Named& each : named()) {
    if (name == each.name) return TiktokenEncoding{each.pattern, each.special_tokens};
  }
  if (name.find("qwen") != std::string::npos) return qwen(ranks);
  if (file_name == "tokenizer.model" && ranks == kLlama3Ranks) return llama3(ranks);
  return std::nullopt;
}

std::string known_encodings() {
  std::string names;
  for (const Named& each : named()) names += std::string(each.name) + ", ";
  return names + "qwen and Llama 3's tokenizer.model";
}

}  // namespace ingot::data
