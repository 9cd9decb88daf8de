// Cases worked out by hand; tests/python/tiktoken_test.py compares many texts with OpenAI's library.
#include "data/tiktoken_tokenizer.h"

#include <ctime>

#include "data/export_tokenizer.h"
#include "data/test_support.h"
#include "data/tokenizer_files.h"

namespace ingot::data {
namespace {

using base::DataError;
using Ids = std::vector<int32_t>;

constexpr const char* kSettings = R"({"pattern": "\\p{L}+|\\s", "special_tokens": {"<|end|>": 300, "<eos>": 301}})";

std::string line(std::string_view token, int64_t rank) { return base64_of(token) + " " + std::to_string(rank) + "\n"; }

/// The 256 bytes as ids 0 to 255, and `tokens` behind them.
std::string ranks_of(const std::vector<std::string>& tokens) {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text += line(std::string(1, static_cast<char>(byte)), byte);
  for (size_t i = 0; i < tokens.size(); ++i) text += line(tokens[i], 256 + static_cast<int64_t>(i));
  return text;
}

TiktokenTokenizer made(const std::vector<std::string>& tokens, const TiktokenSettings& settings = {kSettings, ""}) {
  return TiktokenTokenizer(ranks_of(tokens), settings, "small.tiktoken");
}

TEST(Tiktoken, neighbours_merge_by_the_rank_of_what_they_are_together) {
  const auto tokenizer = made({"bc", "ab", "abc", "cd", "abcd"});  // 256 to 260
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{257}));
  EXPECT_EQ(tokenizer.encode("abx"), (Ids{257, 'x'}));
  EXPECT_EQ(tokenizer.encode("abcx"), (Ids{258, 'x'})) << "bc before ab, then a with bc";
  EXPECT_EQ(tokenizer.encode("abcdx"), (Ids{260, 'x'})) << "bc, abc, and then abc with d, which no list of merges would need to have";
  EXPECT_EQ(tokenizer.encode("cdbc"), (Ids{259, 256}));
}

TEST(Tiktoken, words_that_are_tokens_are_taken_whole) {
  const auto tokenizer = made({"ab", "xyz"});  // no two parts of xyz are tokens together
  EXPECT_EQ(tokenizer.encode("xyz"), (Ids{257}));
  EXPECT_EQ(tokenizer.encode("xyza"), (Ids{'x', 'y', 'z', 'a'}));
}

TEST(Tiktoken, text_between_matches_is_dropped) { EXPECT_EQ(made({}).encode("a1 b"), (Ids{'a', ' ', 'b'})); }

TEST(Tiktoken, special_tokens_are_found_in_text_and_left_out_of_it) {
  const auto tokenizer = made({"ab"}, {kSettings, R"({"bos_token": "<|end|>", "add_bos_token": true})"});
  EXPECT_EQ(tokenizer.encode("ab<|end|>a"), (Ids{256, 300, 'a'}));
  EXPECT_EQ(tokenizer.encode_with_special("a"), (Ids{300, 'a'}));
  EXPECT_EQ(tokenizer.special().bos, 300);
  EXPECT_EQ(tokenizer.special().eos, 301) << "by its name";
  EXPECT_EQ(tokenizer.vocab_size(), 302);
  EXPECT_EQ(tokenizer.decode(Ids{256, 300, 'a'}), "aba");
  EXPECT_EQ(tokenizer.decode(Ids{256, 300, 'a'}, /*keep_special=*/true), "ab<|end|>a");
  EXPECT_EQ(tokenizer.decode(Ids{0xC3, 0xA9, 0xC3, 'x'}), "\xC3\xA9\xEF\xBF\xBDx");
  EXPECT_EQ(tokenizer.piece(' '), "\xC4\xA0") << "as byte-level vocabularies spell it";
  EXPECT_EQ(tokenizer.id_of("\xC4\xA0"), ' ');
  EXPECT_EQ(tokenizer.id_of("<|end|>"), 300);
  EXPECT_EQ(tokenizer.id_of("abc"), -1);
  expect_error<DataError>([&] { tokenizer.decode(Ids{302}); }, {"no token 302", "vocabulary of 302"});
}

TEST(Tiktoken, settings_come_from_beside_the_file_or_from_its_name) {
  const TemporaryFolder folder;
  folder.write("cl100k_base.tiktoken", ranks_of({}));
  auto loaded = load_tokenizer(folder.path());
  EXPECT_EQ(loaded->id_of("<|endofprompt|>"), 100276);
  EXPECT_EQ(loaded->special().eos, 100257);
  EXPECT_EQ(loaded->encode("a1"), (Ids{'a', '1'}));
  folder.write("tokenizer_config.json", R"({"pattern": "a+", "added_tokens_decoder": {"400": {"content": "<s>"}}})");
  EXPECT_EQ(load_tokenizer(folder.path())->encode("a1<s>"), (Ids{'a', 400}));
  folder.write("tiktoken.json", kSettings);
  EXPECT_EQ(load_tokenizer(folder / "cl100k_base.tiktoken")->encode("ab1<s>"), (Ids{'a', 'b', 's'})) << "the nearest to the file";
  folder.write("other.tiktoken", ranks_of({}));
  expect_error<DataError>([&] { load_tokenizer(folder.path()); }, {"holds 2 .tiktoken files"});
}

TEST(Tiktoken, special_tokens_of_qwen_and_llama_follow_the_ranks) {
  EXPECT_EQ(known_encoding("qwen.tiktoken", 151643)->special_tokens.at("<|im_end|>"), 151645);
  EXPECT_EQ(known_encoding("Qwen.tiktoken", 151643)->special_tokens.at("<|extra_204|>"), 151850);
  const auto llama = *known_encoding("tokenizer.model", 128000);
  EXPECT_EQ(llama.special_tokens.size(), 256);
  EXPECT_EQ(llama.special_tokens.at("<|eot_id|>"), 128009);
  EXPECT_EQ(llama.special_tokens.at("<|reserved_special_token_250|>"), 128255);
  EXPECT_FALSE(known_encoding("tokenizer.model", 500));
}

TEST(Tiktoken, a_model_file_may_hold_ranks) {
  const TemporaryFolder folder;
  folder.write("tokenizer.model", ranks_of({"ab"}));
  expect_error<DataError>([&] { load_tokenizer(folder.path()); }, {"tokenizer.model", "no known encoding", "cl100k_base", "tiktoken.json"});
  folder.write("tiktoken.json", kSettings);
  EXPECT_EQ(load_tokenizer(folder.path())->encode("ab"), (Ids{256}));
}

TEST(Tiktoken, damage_is_said_with_its_line) {
  const auto said = [](const std::string& ranks, const std::vector<std::string>& words,
                       const TiktokenSettings& settings = {kSettings, ""}) {
    expect_error<DataError>([&] { TiktokenTokenizer(ranks, settings, "bad.tiktoken"); }, words);
  };
  said("YQ== 0\nYg==\n", {"bad.tiktoken line 2", "a space and a rank"});
  said("YQ= 0\n", {"line 1", "'YQ=' is not base64"});
  said("YQ== -1\n", {"line 1", "'-1' is not a rank from 0 to 1000000"});
  said("YQ== 1.5\n", {"'1.5' is not a rank"});
  said("YQ== 99999999999999999999\n", {"'99999999999999999999' is not a rank"});
  said("YQ== 7000000\n", {"'7000000'"});
  said(" 5\n", {"has 0 bytes"});
  said("\xFF\xFE 5\n", {"line 1", "is not base64"});
  said(line("a", 0) + line("a", 1), {"line 2", "rank 0 again"});
  said(line("a", 0) + line("b", 0), {"line 2", "rank 0 has a token already"});
  said(line(std::string(2000, 'a'), 0), {"2000 bytes"});
  said(line("a", 0), {"bad.tiktoken", "no token of the byte 0x00", "cut short"});
  said("", {"no token of the byte 0x00"});
  said(ranks_of({}), {"no known encoding"}, {"", ""});
  said(ranks_of({}), {"'<s>' has the id 5 of another token"}, {R"({"pattern": "a", "special_tokens": {"<s>": 5}})", ""});
  said(ranks_of({}), {"'<s>' has the id -5"}, {R"({"pattern": "a", "special_tokens": {"<s>": -5}})", ""});
  said(ranks_of({}), {"pattern '('"}, {R"({"pattern": "("})", ""});
  said(ranks_of({}), {"tiktoken.json is not a JSON object"}, {"[1", ""});
}

// What loading costs grows with the square of a token's length: runs of one letter, which are made of any two shorter ones, and long tokens
// that are made of nothing.
TEST(Tiktoken, what_a_crafted_file_costs_is_bounded) {
  std::vector<std::string> runs, noise;
  for (char letter = 'a'; letter <= 'z'; ++letter)
    for (size_t length = 2; length <= 1024; ++length) runs.emplace_back(length, letter);
  for (size_t token = 0; token < 40'000; ++token) {
    noise.emplace_back(1024, 'x');
    for (size_t at = 0; at < 8; ++at) noise.back()[at * 100] = static_cast<char>('a' + (token >> 2 * at) % 4);
  }
  for (const auto& tokens : {runs, noise}) {
    const auto text = ranks_of(tokens);
    const auto before = peak_bytes();
    const auto start = std::clock();
    expect_error<DataError>(
        [&] {
          TiktokenTokenizer(text, {kSettings, ""}, "small.tiktoken");
        },
        {"small.tiktoken", "the sum of their squared lengths is over 268435456"});
    EXPECT_LT((std::clock() - start) / CLOCKS_PER_SEC, 20);
    EXPECT_LT(peak_bytes() - before, int64_t{256} << 20);
  }
}

TEST(Tiktoken, what_travels_with_a_model_says_the_pattern_itself) {
  const TemporaryFolder folder, exported;
  folder.write("cl100k_base.tiktoken", ranks_of({"ab"}));
  const auto tokenizer = load_tokenizer(folder.path());
  const auto again = load_tokenizer(files_of(*tokenizer), "archive");
  EXPECT_EQ(again->encode("ab 1<|endoftext|>"), tokenizer->encode("ab 1<|endoftext|>"));
  const auto result = export_tokenizer(*tokenizer, exported.path());
  EXPECT_FALSE(result.tokenizer_json);
  EXPECT_EQ(load_tokenizer(exported.path())->encode("ab 1<|endoftext|>"), tokenizer->encode("ab 1<|endoftext|>"));

  // Another tokenizer beside it, and one that an earlier export left.
  for (const auto* name : {"tokenizer.json", "tokenizer.model"}) {
    folder.write(name, "another one");
    exported.write(name, "another one");
  }
  export_tokenizer(*load_tokenizer(folder / "cl100k_base.tiktoken"), exported.path());
  EXPECT_EQ(load_tokenizer(exported.path())->encode("ab 1<|endoftext|>"), tokenizer->encode("ab 1<|endoftext|>"));
}

TEST(Tiktoken, settings_that_are_odd_are_no_crash) {
  const std::string deep(200'000, '['), closed = deep + std::string(200'000, ']');
  EXPECT_EQ(made({"ab"}, {kSettings, "{\"add_bos_token\": null, \"x\": " + closed + "}"}).encode("ab"), Ids{256});
  EXPECT_EQ(made({"ab"}, {R"({"pattern": "\\p{L}+", "special_tokens": ["<|end|>"]})", ""}).encode("ab"), Ids{256});
  expect_error<DataError>([&] { made({"ab"}, {R"({"pattern": "[a-z--b]+|."})", ""}); }, {"a difference of classes"});
}

}  // namespace
}  // namespace ingot::data
