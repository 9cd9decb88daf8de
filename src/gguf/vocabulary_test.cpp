// What llama.cpp calls the ways of cutting text into words.
#include "gguf/vocabulary.h"

#include <gtest/gtest.h>

namespace ingot::gguf {
namespace {

TEST(GgufVocabulary, pre_tokenizers_are_known_by_their_patterns) {
  const std::string bytes = R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":)";
  const auto file = [](const std::string& steps, const std::string& more = "") {
    return R"({"model":{"type":"BPE")" + more + R"(},"pre_tokenizer":)" + steps + "}";
  };
  const auto split = [&](const std::string& pattern) {
    return R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":")" + pattern +
           R"("},"behavior":"Isolated","invert":false},)" + bytes + "false}]}";
  };
  const std::string llama3 =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
  const std::string qwen =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
  EXPECT_EQ(pre_tokenizer_name(file(bytes + "true}")), "gpt-2");
  EXPECT_EQ(pre_tokenizer_name(file(split(llama3), R"(,"ignore_merges":true)")), "llama-bpe");
  EXPECT_EQ(pre_tokenizer_name(file(split(llama3))), "smaug-bpe");
  EXPECT_EQ(pre_tokenizer_name(file(split(qwen))), "qwen2");
  EXPECT_EQ(pre_tokenizer_name(file(split("\\\\w+"))), std::nullopt);
  EXPECT_EQ(pre_tokenizer_name("{"), std::nullopt);
}

}  // namespace
}  // namespace ingot::gguf
