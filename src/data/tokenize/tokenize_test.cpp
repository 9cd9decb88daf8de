#include "data/tokenize/tokenize.h"

#include <nlohmann/json.hpp>

#include "base/random.h"
#include "data/test_support.h"
#include "data/tokenize/byte_tokenizer.h"
#include "data/utf8.h"

namespace ingot::data {
namespace {

using base::DataError;

struct Tokenize : ::testing::Test {
  TemporaryFolder folder;
  TokenizeOptions options;
  TokenizeResult run() {
    options.output = folder / "out";
    options.overwrite = true;
    return tokenize(ByteTokenizer(folder.write("tokenizer", "bytes")), options);
  }
  void input(const std::string& name, const std::string& content) { options.inputs.push_back(folder.write(name, content)); }
};

TEST_F(Tokenize, documents_of_plain_text_are_files_lines_or_paragraphs) {
  input("a.txt", "one\ntwo\r\n\n  \nthree\n\n");
  input("b.txt",
        "\xEF\xBB\xBF"
        "four");
  run();
  EXPECT_EQ(tokens_as_text(folder / "out"), "one\ntwo\r\n\n  \nthree\n\n|four|");
  options.text.split = DocumentSplit::line;
  EXPECT_EQ(run().documents, 4);
  EXPECT_EQ(tokens_as_text(folder / "out"), "one|two|three|four|");
  options.text.split = DocumentSplit::paragraph;
  options.prepend_bos = true;
  run();
  EXPECT_EQ(tokens_as_text(folder / "out"), "|one\ntwo||three||four|");
}

TEST_F(Tokenize, json_lines_give_the_chosen_field_and_skip_empty_texts) {
  input("a.jsonl",
        "{\"id\": 1, \"text\": \"a\\nb\", \"meta\": {\"text\": \"no\"}}\n\n{\"text\": \"\"}\r\n{\"text\": \"\\u00e9\", \"x\": [{\"text\": "
        "1}]}");
  const auto result = run();
  EXPECT_EQ(result.documents, 2);
  EXPECT_EQ(result.empty_documents, 1);
  EXPECT_EQ(tokens_as_text(folder / "out"), "a\nb|\xC3\xA9|");
}

TEST_F(Tokenize, malformed_json_line_is_named_or_counted) {
  input("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"\n{\"texts\": \"c\"}\n{\"text\": 4}\n[1]\n{\"text\": \"d\"}\n");
  expect_error<DataError>([&] { run(); }, {"bad.jsonl:2:", "--skip-bad"});
  EXPECT_FALSE(fs::exists(folder / "out.idx"));
  EXPECT_FALSE(fs::exists(folder / "out.bin"));
  options.text.skip_bad = true;
  const auto result = run();
  EXPECT_EQ(result.bad_lines, 4);
  EXPECT_THAT(result.first_problem, ::testing::HasSubstr("bad.jsonl:2:"));
  EXPECT_EQ(tokens_as_text(folder / "out"), "a|d|");
  options.text.skip_bad = false;
  options.inputs = {folder.write("near.jsonl", "{\"texts\": \"c\"}")};
  expect_error<DataError>([&] { run(); }, {"near.jsonl:1: there is no field 'text'; did you mean 'texts'?"});
}

TEST_F(Tokenize, invalid_utf8_becomes_replacement_characters_or_an_error) {
  input("x.txt",
        "ok\nab\xFF"
        "c\xE4\xB8\n");
  const auto result = run();
  EXPECT_EQ(result.invalid_utf8, 2);
  EXPECT_EQ(tokens_as_text(folder / "out"),
            "ok\nab\xEF\xBF\xBD"
            "c\xEF\xBF\xBD\n|");
  options.text.strict_utf8 = true;
  options.text.split = DocumentSplit::line;
  expect_error<DataError>([&] { run(); }, {"x.txt:2:", "not UTF-8"});
}

TEST_F(Tokenize, files_that_are_no_text_are_refused_by_kind) {
  for (const auto& [content, word] : std::vector<std::pair<std::string, std::string>>{{"PAR1....", "Parquet"},
                                                                                      {std::string("\x1f\x8b\x08\x00", 4), "cut short"},
                                                                                      {std::string("\xFF\xFEh\0i\0", 6), "iconv"},
                                                                                      {std::string("a\0b", 3), "NUL"},
                                                                                      {"", "no text"}}) {
    options.inputs = {folder.write("wrong", content)};
    expect_error<DataError>([&] { run(); }, {"wrong", word});
  }
  options.inputs = {folder / "none.txt"};
  expect_error<base::FileError>([&] { run(); }, {"none.txt", "does not exist"});
  options.inputs = {folder.path()};
  expect_error<base::FileError>([&] { run(); }, {"is a folder"});
  EXPECT_THROW(tokenize(ByteTokenizer(folder / "tokenizer", /*eos=*/false), options), DataError);
}

std::string random_text(uint64_t key, int size) {
  static const std::vector<std::string> kParts = {"word", " ",        "  ",
                                                  "\n",   "\n\n",     "\n \t\n",
                                                  "\r\n", "\xC3\xA9", "\xF0\x9F\x98\x80",
                                                  "\xFF", "\xE4\xB8", "long-unbroken-run-of-text-without-any-space"};
  std::string text;
  for (int i = 0; i < size; ++i) text += kParts[base::philox(key, static_cast<uint64_t>(i))[0] % kParts.size()];
  return text;
}

// Small blocks put every cut somewhere; the reference is the whole file as one block.
TEST_F(Tokenize, block_borders_and_threads_never_show_in_the_output) {
  for (uint64_t trial = 0; trial < 3; ++trial) {
    options.inputs.clear();
    std::string lines;
    for (int i = 0; i < 40; ++i)
      lines += "{\"text\": \"" + std::string(base::philox(trial, static_cast<uint64_t>(i))[1] % 60, 'x') + "\"}\n";
    input("r.txt", random_text(trial, 400));
    input("s.jsonl", lines);
    input("t.txt", random_text(trial + 100, 3));
    for (const auto split : {DocumentSplit::file, DocumentSplit::line, DocumentSplit::paragraph}) {
      options.text = {.split = split, .block_bytes = 1 << 20};
      options.threads = 1;
      const auto whole = run();
      const std::string bin = content_of(folder / "out.bin"), idx = content_of(folder / "out.idx");
      for (const int64_t block_bytes : {17, 300}) {
        options.text.block_bytes = block_bytes;
        options.threads = static_cast<int>(1 + trial % 4);
        const auto blocks = run();
        // A broken sequence that a cut of a file-sized document divides cannot be: cuts lie behind whole characters.
        EXPECT_EQ(blocks.documents, whole.documents);
        EXPECT_EQ(blocks.input_bytes, whole.input_bytes);
        ASSERT_TRUE(content_of(folder / "out.bin") == bin && content_of(folder / "out.idx") == idx)
            << "trial " << trial << " block " << block_bytes;
      }
    }
  }
}

TEST_F(Tokenize, earliest_bad_line_is_the_one_reported_with_any_number_of_threads) {
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += i == 700 || i == 701 || i == 1500 ? "oops\n" : "{\"text\": \"fine\"}\n";
  input("many.jsonl", lines);
  options.text.block_bytes = 64;
  for (options.threads = 1; options.threads <= 4; ++options.threads) expect_error<DataError>([&] { run(); }, {"many.jsonl:701:"});
}

TEST_F(Tokenize, progress_ends_at_the_size_of_the_input) {
  input("p.txt", random_text(1, 5000));
  options.text.block_bytes = 100;
  int64_t last = 0, total = 0;
  options.progress = [&](int64_t done, int64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  };
  run();
  EXPECT_EQ(last, static_cast<int64_t>(fs::file_size(folder / "p.txt")));
  EXPECT_EQ(total, last);
}

constexpr const char* kTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

std::string conversation(const std::string& question, const std::string& answer) {
  return R"({"messages": [{"role": "user", "content": ")" + question + R"("}, {"role": "assistant", "content": ")" + answer + "\"}]}\n";
}

TEST_F(Tokenize, conversations_that_are_too_long_lose_thoughts_and_are_counted_however_they_are_cut_into_pieces) {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += conversation(
        "q", i % 4 == 3 ? std::string(80, 'x') : "<think>" + std::string(static_cast<size_t>(10 * (i % 4) + 1), 't') + "</think>a");
  input("chats.jsonl", lines);
  const chat::ChatTemplate chat_template(kTemplate, nlohmann::ordered_json::object());
  options.chat_template = &chat_template;
  options.trim.most_tokens = 47;  // as many as one with a thought of 11 has
  std::string text;
  for (const int threads : {1, 4}) {
    for (const int64_t piece_bytes : {int64_t{1} << 20, int64_t{700}}) {
      options.threads = threads;
      options.piece_bytes = piece_bytes;
      const auto result = run();
      EXPECT_EQ(result.documents, 30);
      EXPECT_EQ(result.trim.trimmed, 10);
      EXPECT_EQ(result.trim.cut_tokens, 100);
      EXPECT_EQ(result.trim.thoughts, 10);
      EXPECT_EQ(result.trim.removed_thoughts, 0);
      EXPECT_EQ(result.trim.left_out, 10);
      EXPECT_EQ(result.trim.left_out_tokens, 10 * 100);
      ASSERT_EQ(result.trim.examples.size(), 5U);
      EXPECT_THAT(result.trim.examples[0], ::testing::HasSubstr("chats.jsonl:3: 57 tokens, 47 left"));
      EXPECT_THAT(result.trim.examples[1], ::testing::HasSubstr("chats.jsonl:4: 100 tokens, left out"));
      const auto found = tokens_as_text(folder / "out");
      EXPECT_TRUE(text.empty() || text == found);
      text = found;
      options.output = folder / "out";
      options.overwrite = false;
      const auto again = tokenize(ByteTokenizer(folder.write("tokenizer", "bytes")), options);
      EXPECT_TRUE(again.was_there);
      EXPECT_EQ(again.trim.examples, result.trim.examples) << "of the manifest";
    }
  }
  const IndexedDataset dataset(folder / "out");
  EXPECT_TRUE(dataset.has_mask());
  for (int64_t document = 0; document < dataset.documents(); ++document) EXPECT_LE(dataset.document_tokens(document), 47);
  // Another budget is another dataset.
  options.trim.most_tokens = 0;
  expect_error<base::UsageError>([&] { tokenize(ByteTokenizer(folder.write("tokenizer", "bytes")), options); },
                                 {"'trim_to' was 47, now it is null"});
}

TEST_F(Tokenize, trimming_is_of_conversations) {
  input("a.txt", "text");
  options.trim.most_tokens = 10;
  expect_error<base::UsageError>([&] { run(); }, {"--trim-to 10: it goes with --chat"});
  const chat::ChatTemplate chat_template(kTemplate, nlohmann::ordered_json::object());
  options.chat_template = &chat_template;
  options.trim.close = options.trim.open;
  expect_error<base::UsageError>([&] { run(); }, {"--think-tags are two different texts"});
}

TEST(Utf8, every_code_point_round_trips_and_every_prefix_is_known_to_be_incomplete) {
  for (char32_t c = 1; c <= 0x10FFFF; c += 7) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    const std::string text = to_utf8(c);
    const CodePoint decoded = decode_utf8(text);
    ASSERT_TRUE(decoded.valid && decoded.value == c && decoded.length == static_cast<int>(text.size()));
    for (size_t cut = 1; cut < text.size(); ++cut) ASSERT_EQ(complete_utf8_prefix("a" + text.substr(0, cut)), 1u);
    ASSERT_EQ(complete_utf8_prefix("a" + text), 1 + text.size());
  }
}

// From Unicode 15, tables 3-8 to 3-10: what a conforming decoder replaces.
TEST(Utf8, invalid_sequences_are_replaced_as_unicode_recommends) {
  const auto replaced = [](const std::string& text) {
    int64_t count = 0;
    const std::string mended = replace_invalid_utf8(text, count);
    return mended + "/" + std::to_string(count);
  };
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(replaced("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
                     "A"),
            r + r + r + r + r + r + r + r + "A/8");
  EXPECT_EQ(replaced("\xED\xA0\x80\xED\xBF\xBF\xED\xAF"
                     "A"),
            r + r + r + r + r + r + r + r + "A/8");
  EXPECT_EQ(replaced("\xF4\x91\x92\x93\xFF"
                     "A\x80\xBF"
                     "B"),
            r + r + r + r + r + "A" + r + r + "B/7");
  EXPECT_EQ(replaced("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
                     "A"),
            r + r + r + r + "A/4");
}

}  // namespace
}  // namespace ingot::data
