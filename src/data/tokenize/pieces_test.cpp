// Several calls of tokenize() that share the work, and calls that go on where others stopped.
#include <sys/syscall.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/random.h"
#include "data/test_support.h"
#include "data/tokenize/byte_tokenizer.h"
#include "data/tokenize/piece_folder.h"
#include "data/tokenize/text_hash.h"
#include "data/tokenize/tokenize.h"

namespace {

std::atomic<bool> has_locks = true;  // the file system

}  // namespace

// In place of libc's, for this program alone: thousands of small pieces would wait for the disk.
extern "C" int fsync(int) { return 0; }
extern "C" int flock(int descriptor, int operation) {
  if (has_locks) return static_cast<int>(::syscall(SYS_flock, descriptor, operation));
  errno = ENOLCK;
  return -1;
}

namespace ingot::data {
namespace {

using base::DataError;
using base::UsageError;

std::string gzip(const std::string& text) {
  std::string packed(compressBound(text.size()) + 64, '\0');
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

struct TokenizePieces : ::testing::Test {
  TemporaryFolder folder;
  TokenizeOptions options{.threads = 2};

  TokenizePieces() { folder.write("tokenizer", "bytes"); }
  fs::path input(const std::string& name, const std::string& content) {
    options.inputs.push_back(folder.write(name, content));
    return options.inputs.back();
  }
  TokenizeResult run(const std::string& output) { return tokenize(ByteTokenizer(folder / "tokenizer"), with(output)); }
  TokenizeOptions with(const std::string& output) const {
    auto all = options;
    all.output = folder / output;
    return all;
  }
  TokenizeResult in_one_piece() {
    auto whole = with("whole");
    whole.piece_bytes = int64_t{1} << 40;
    whole.overwrite = true;
    return tokenize(ByteTokenizer(folder / "tokenizer"), whole);
  }
  void expect_the_bytes_of_one_piece(const std::string& output) const {
    for (const std::string suffix : {".bin", ".idx"})
      ASSERT_TRUE(content_of(folder / (output + suffix)) == content_of(folder / ("whole" + suffix))) << output << suffix;
    EXPECT_FALSE(fs::exists(folder / (output + ".pieces")));
  }
  nlohmann::json manifest(const std::string& output) const {
    return nlohmann::json::parse(content_of(folder / (output + ".manifest.json")));
  }
  // A call that ends before its last pieces, as a killed one does: the rest of the input cannot be read.
  void leave_unfinished(const std::string& output) {
    options.progress = [](int64_t done, int64_t total) {
      if (2 * done > total) throw std::runtime_error("stopped");
    };
    EXPECT_THROW(run(output), std::runtime_error);
    options.progress = nullptr;
    ASSERT_TRUE(fs::exists(folder / (output + ".pieces/000000.json")));
    ASSERT_FALSE(fs::exists(folder / (output + ".idx")));
  }
  std::string json_lines(int count, const std::string& end = "\n") const {
    std::string text;
    for (int i = 0; i < count; ++i) {
      const auto dice = base::philox(1, static_cast<uint64_t>(i));
      text += "{\"text\": \"" + std::string(dice[0] % 60, static_cast<char>('a' + i % 26)) + "\"}" + (dice[1] % 9 == 0 ? end + end : end);
    }
    return text;
  }
};

TEST_F(TokenizePieces, boundaries_of_every_kind_give_the_bytes_of_one_piece) {
  const std::string blank = "\n \t\n";
  std::string paragraphs = "\n\n";
  for (int i = 0; i < 60; ++i)
    paragraphs += std::string(i % 7 * 5, 'p') + "\nline of " + std::to_string(i) + (i % 3 ? "\n" : "\r\n\r\n") + (i % 4 ? "" : blank);
  input("a.jsonl", json_lines(50));
  input("crlf.jsonl", json_lines(40, "\r\n"));
  input("empty.jsonl", "");
  input("no_end.jsonl", json_lines(20) + R"({"text": "the last line has no end"})");
  input("blank.jsonl", std::string(300, '\n'));
  input("packed.jsonl.gz", gzip(json_lines(30)));
  input("one_line.jsonl", R"({"text": ")" + std::string(2000, 'l') + "\"}\n" + json_lines(5));
  input("text.txt", paragraphs);
  input("mark.txt", "\xEF\xBB\xBF" + paragraphs + "no end");
  input("nothing.txt", "");
  input("spaces.txt", std::string(500, ' ') + "\n" + std::string(300, ' '));
  for (const auto split : {DocumentSplit::line, DocumentSplit::paragraph, DocumentSplit::file}) {
    for (const int64_t block_bytes : {64, 1 << 20}) {
      options.text = {.split = split, .block_bytes = block_bytes};
      const auto whole = in_one_piece();
      for (const int64_t piece_bytes : {90, 1000}) {
        options.piece_bytes = piece_bytes;
        options.overwrite = true;
        const auto pieces = run("out");
        expect_the_bytes_of_one_piece("out");
        EXPECT_EQ(pieces.documents, whole.documents);
        EXPECT_EQ(pieces.input_bytes, whole.input_bytes);
        EXPECT_EQ(pieces.empty_documents, whole.empty_documents);
        EXPECT_EQ(pieces.own_pieces, pieces.pieces);
        EXPECT_GT(pieces.pieces, 5);
      }
    }
  }
}

TEST_F(TokenizePieces, a_cut_may_be_at_every_byte) {
  for (const std::string text : {"a\nb\n\nc\n", "\n\n\nx", "a\r\n\r\nb\r\n", " \n\t\nb \n \n c", "\xEF\xBB\xBFq\n\nr", "no end"}) {
    options.inputs = {folder.write("a.txt", text)};
    for (const auto split : {DocumentSplit::line, DocumentSplit::paragraph}) {
      options.text.split = split;
      in_one_piece();
      for (options.piece_bytes = 1; options.piece_bytes < 6; ++options.piece_bytes) {
        options.overwrite = true;
        run("out");
        expect_the_bytes_of_one_piece("out");
      }
    }
  }
}

// Documents beyond 8 MiB are encoded in parts. This one's ids show where they begin.
class PartTokenizer : public ByteTokenizer {
 public:
  using ByteTokenizer::ByteTokenizer;
  std::vector<int32_t> encode(std::string_view text) const override {
    auto ids = ByteTokenizer::encode(text);
    ids.insert(ids.begin(), 0);
    return ids;
  }
};

TEST_F(TokenizePieces, a_document_that_is_longer_than_a_piece_is_cut_where_it_always_is) {
  std::string text = "short\n";
  for (int line = 0; line < 2; ++line) {
    for (int i = 0; i < 200'000; ++i) text += "some words of a line that is very long, number " + std::to_string(i) + " ";
    text += "\nshort\n";
  }
  input("long.txt", text);
  options.text.split = DocumentSplit::line;
  options.text.block_bytes = 100'000;
  const PartTokenizer tokenizer(folder / "tokenizer");
  tokenize(tokenizer, with("whole"));
  options.piece_bytes = 70'000;
  EXPECT_GT(tokenize(tokenizer, with("out")).pieces, 200);
  expect_the_bytes_of_one_piece("out");
  EXPECT_GT(std::ranges::count(tokens_as_text(folder / "out"), '|'), 4 + 5) << "nothing was cut";
}

TEST_F(TokenizePieces, any_number_of_workers_and_threads_give_the_same_bytes_and_do_each_piece_once) {
  input("a.jsonl", json_lines(2000));
  input("b.jsonl.gz", gzip(json_lines(100)));
  const auto whole = in_one_piece();
  options.piece_bytes = 3000;
  options.text.block_bytes = 500;
  for (const int workers : {1, 2, 5}) {
    const auto output = "out" + std::to_string(workers);
    std::vector<TokenizeResult> results(static_cast<size_t>(workers));
    {
      std::vector<std::jthread> threads;
      for (int w = 0; w < workers; ++w)
        threads.emplace_back([&, w] {
          auto own = with(output);
          own.threads = 1 + w;
          results[static_cast<size_t>(w)] = tokenize(ByteTokenizer(folder / "tokenizer"), own);
        });
    }
    int64_t pieces = 0;
    for (const auto& result : results) {
      pieces += result.own_pieces;
      EXPECT_EQ(result.documents, whole.documents);
      EXPECT_EQ(result.tokens, whole.tokens);
    }
    EXPECT_EQ(pieces, results[0].pieces);
    EXPECT_GT(pieces, 20);
    expect_the_bytes_of_one_piece(output);
    EXPECT_EQ(content_of(folder / (output + ".manifest.json")), content_of(folder / "out1.manifest.json"));
  }
}

TEST_F(TokenizePieces, finished_pieces_are_not_done_again_and_count_as_progress) {
  input("a.jsonl", json_lines(500));
  in_one_piece();
  options.piece_bytes = 1000;
  leave_unfinished("out");
  // A piece that a killed process was at, with its file.
  folder.write("out.pieces/000019.0123456789abcdef.bin.tmp", "half");
  int64_t finished = 0;
  for (const auto& entry : fs::directory_iterator(folder / "out.pieces"))
    finished += entry.path().extension() == ".json" && entry.path().filename() != "plan.json";
  int64_t first_done = 0;
  options.progress = [&](int64_t done, int64_t) {
    if (first_done == 0) first_done = done;
  };
  const auto result = run("out");
  EXPECT_GT(finished, 3);
  EXPECT_EQ(result.own_pieces, result.pieces - finished);
  EXPECT_GT(first_done, finished * 1000);
  expect_the_bytes_of_one_piece("out");
}

TEST_F(TokenizePieces, a_record_that_is_damaged_or_of_other_settings_does_not_count) {
  input("a.jsonl", json_lines(500));
  const auto whole = in_one_piece();
  options.piece_bytes = 1000;
  leave_unfinished("out");
  folder.write("out.pieces/000000.json", "{\"made_from\": 3}");
  folder.write("out.pieces/000003.json", "half a rec");
  auto other = nlohmann::json::parse(content_of(folder / "out.pieces/000001.json"));
  other["made_from"] = "0123";
  other["documents"] = 77;
  folder.write("out.pieces/000001.json", other.dump());
  fs::remove(folder / "out.pieces/000002.bin");
  EXPECT_EQ(run("out").documents, whole.documents);
  expect_the_bytes_of_one_piece("out");
}

TEST_F(TokenizePieces, changed_inputs_and_settings_are_refused_until_overwrite) {
  const auto file = input("a.jsonl", json_lines(500));
  options.piece_bytes = 1000;
  leave_unfinished("out");
  const auto unchanged = options;
  options.text.skip_bad = true;
  expect_error<UsageError>([&] { run("out"); }, {"out.pieces", "'skip_bad' was false, now it is true", "--overwrite"});
  options = unchanged;
  input("b.jsonl", "");
  expect_error<UsageError>([&] { run("out"); }, {"the number of inputs was 1, now it is 2"});
  options = unchanged;
  folder.write("tokenizer", "others");
  expect_error<UsageError>([&] { run("out"); }, {"the tokenizer is another one"});
  folder.write("tokenizer", "bytes");
  const auto time = fs::last_write_time(file);
  fs::last_write_time(file, time + std::chrono::seconds(1));
  expect_error<UsageError>([&] { run("out"); }, {"a.jsonl with", "was changed since"});
  fs::last_write_time(file, time);
  folder.write("a.jsonl", json_lines(501));
  expect_error<UsageError>([&] { run("out"); }, {"input 1 was ", "a.jsonl with", "now it is"});
  options.overwrite = true;
  in_one_piece();
  const auto result = run("out");
  EXPECT_EQ(result.own_pieces, result.pieces);
  expect_the_bytes_of_one_piece("out");
}

TEST_F(TokenizePieces, a_finished_dataset_is_there_already_and_another_one_is_not_replaced) {
  input("a.jsonl", json_lines(50));
  const auto first = run("out");
  const auto bytes = content_of(folder / "out.bin"), manifest_bytes = content_of(folder / "out.manifest.json");
  const auto again = run("out");
  EXPECT_TRUE(again.was_there);
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.own_pieces, 0);
  options.prepend_bos = true;
  expect_error<UsageError>([&] { run("out"); }, {"out.idx is there already", "'bos' was false, now it is true", "--overwrite"});
  EXPECT_EQ(content_of(folder / "out.bin"), bytes);
  EXPECT_EQ(content_of(folder / "out.manifest.json"), manifest_bytes);
  options.overwrite = true;
  EXPECT_EQ(run("out").tokens, first.tokens + first.documents);
  options.overwrite = false;
  fs::resize_file(folder / "out.bin", 10);
  expect_error<UsageError>([&] { run("out"); }, {"one of its files has another size"});
  fs::remove(folder / "out.manifest.json");
  expect_error<UsageError>([&] { run("out"); }, {"does not say of what it was made"});
}

TEST_F(TokenizePieces, manifest_says_of_what_it_was_made) {
  const auto plain = json_lines(30), packed = json_lines(20);
  input("a.jsonl", plain);
  input("b.jsonl.gz", gzip(packed));
  input("c.jsonl", "{\"text\": 1}\n{\"text\": \"\"}\n{\"text\": \"c\xff\"}\n");
  options.text.skip_bad = true;
  options.piece_bytes = 700;
  const auto result = run("out");
  const auto said = manifest("out");
  EXPECT_EQ(said["documents"], result.documents);
  EXPECT_EQ(said["tokens"], result.tokens);
  EXPECT_EQ(said["bad_lines"], 1);
  EXPECT_EQ(said["invalid_utf8"], 1);
  EXPECT_THAT(said["first_problem"].get<std::string>(), ::testing::EndsWith("c.jsonl:1: 'text' is not a text"));
  EXPECT_EQ(said["made_from"]["settings"]["skip_bad"], true);
  EXPECT_EQ(said["made_from"]["tokenizer"]["tokenizer.model"], hash_of("bytes"));
  EXPECT_EQ(said["made_from"]["inputs"][0]["bytes"], static_cast<int64_t>(plain.size()));
  EXPECT_EQ(said["files"][".bin"], result.tokens * 2);
  // Ranges behind one another are the text; a file that is not cut has the hash of its text.
  std::string again;
  std::map<std::string, std::string> hashes;
  for (const auto& piece : said["pieces"])
    for (const auto& source : piece["sources"]) {
      const auto path = source["path"].get<std::string>();
      const auto begin = source["begin"].get<size_t>(), size = source["text_bytes"].get<size_t>();
      if (path.ends_with("a.jsonl")) {
        EXPECT_EQ(begin, again.size());
        again += plain.substr(begin, size);
        EXPECT_EQ(source["xxh3_128"], hash_of(plain.substr(begin, size)));
      }
      hashes[fs::path(path).filename()] = source["xxh3_128"];
    }
  EXPECT_EQ(again, plain);
  EXPECT_EQ(hashes["b.jsonl.gz"], hash_of(packed));
  EXPECT_EQ(hash_of(""), "99aa06d3014798d86001c324468d497f");  // of xxHash's specification
}

TEST_F(TokenizePieces, small_files_share_pieces_and_nothing_is_left_beside_the_dataset) {
  for (int i = 0; i < 40; ++i) input(std::to_string(i) + ".txt", "text " + std::to_string(i));
  EXPECT_EQ(run("out").pieces, 1);
  options.piece_bytes = 70;
  options.overwrite = true;
  EXPECT_EQ(run("out").pieces, 4);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path()))
    if (const auto name = entry.path().filename().string(); name.starts_with("out")) names.push_back(name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("out.bin", "out.idx", "out.manifest.json"));
}

TEST_F(TokenizePieces, a_failed_call_leaves_what_is_finished_or_nothing) {
  input("a.jsonl", json_lines(20) + "oops\n" + json_lines(300));
  expect_error<DataError>([&] { run("out"); }, {"a.jsonl:", "--skip-bad"});
  EXPECT_FALSE(fs::exists(folder / "out.pieces"));
  options.piece_bytes = 200;
  const auto begin = json_lines(20).size();
  expect_error<DataError>([&] { run("out"); }, {"a.jsonl, byte " + std::to_string(begin) + ":", "--skip-bad"});
  EXPECT_TRUE(fs::exists(folder / "out.pieces/000000.json"));
  EXPECT_FALSE(fs::exists(folder / "out.idx"));
  for (const auto& entry : fs::directory_iterator(folder / "out.pieces")) EXPECT_NE(entry.path().extension(), ".tmp") << entry;
  folder.write("file", "");
  expect_error<base::FileError>([&] { run("file/out"); }, {"cannot create the folder", "file"});
}

// A machine that vanishes may leave its lock behind: here another description of the file holds it and never beats.
TEST_F(TokenizePieces, the_piece_of_a_holder_that_gives_no_sign_of_life_is_done_anew) {
  input("a.jsonl", json_lines(500));
  in_one_piece();
  options.piece_bytes = 1000;
  leave_unfinished("out");
  const auto dead = base::FileLock::try_take(folder / "out.pieces/000012.lock");
  const auto joins = base::FileLock::try_take(folder / "out.pieces/join.lock");
  ASSERT_TRUE(dead && joins);
  options.lease_s = 0.3;
  const auto start = std::chrono::steady_clock::now();
  run("out");
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(600));
  expect_the_bytes_of_one_piece("out");
}

TEST_F(TokenizePieces, without_locks_workers_share_the_work_and_what_a_killed_one_held_is_free_after_a_lease) {
  input("a.jsonl", json_lines(500));
  in_one_piece();
  options.piece_bytes = 1000;
  has_locks = false;
  leave_unfinished("out");
  fs::create_directory(folder / "out.pieces/000015.claim");
  options.lease_s = 0.4;
  std::atomic<int64_t> own_pieces = 0;
  {
    std::vector<std::jthread> threads;
    for (int w = 0; w < 3; ++w) threads.emplace_back([&] { own_pieces += run("out").own_pieces; });
  }
  has_locks = true;
  EXPECT_EQ(own_pieces, 11);
  expect_the_bytes_of_one_piece("out");
}

// What a killed call leaves when all but the manifest, or all but the folder's end, was done.
TEST_F(TokenizePieces, a_call_goes_on_from_between_the_last_steps) {
  input("a.jsonl", json_lines(500));
  in_one_piece();
  options.piece_bytes = 1000;
  leave_unfinished("out");
  fs::copy(folder / "out.pieces", folder / "kept", fs::copy_options::recursive);
  run("out");
  fs::rename(folder / "kept", folder / "out.pieces");
  fs::remove(folder / "out.manifest.json");
  EXPECT_GT(run("out").own_pieces, 0);
  expect_the_bytes_of_one_piece("out");
  EXPECT_TRUE(fs::exists(folder / "out.manifest.json"));
}

}  // namespace
}  // namespace ingot::data
