#include "data/train_tokenizer.h"

#include <sentencepiece_trainer.h>

#include <algorithm>
#include <cmath>
#include <queue>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "base/text.h"
#include "data/sentencepiece_model.h"
#include "data/train_byte_bpe.h"
#include "data/utf8.h"

namespace ingot::data {
namespace {

using base::DataError;
using base::UsageError;

constexpr size_t kMaxSentenceBytes = 4096;  // SentencePiece leaves out what is longer than 4192: lines are cut before that
constexpr std::string_view kByteBpe = "byte-bpe";
constexpr const char* kByteBpeConfig = R"({
 "tokenizer_class": "PreTrainedTokenizerFast",
 "pad_token": "<pad>",
 "eos_token": "<eos>",
 "bos_token": "<bos>",
 "add_bos_token": false,
 "add_eos_token": false
}
)";
constexpr int kTrainingThreads = 4;  // the sums of expectation maximisation depend on it, so it is not the machine's

struct Sentence {
  uint64_t key = 0;  // pseudo-random: those with the smallest keys are the sample
  uint64_t index = 0;
  std::string text;
  bool operator<(const Sentence& other) const { return std::pair(key, index) < std::pair(other.key, other.index); }
};

// A uniform sample without knowing the size of the whole: the sentences with the smallest keys that fit both limits.
class SentenceSample {
 public:
  SentenceSample(const TrainTokenizerOptions& options)
      : key_(base::stream_key(static_cast<uint64_t>(options.seed), "tokenizer sentences")),
        max_sentences_(options.max_sentences),
        max_bytes_(options.max_bytes) {}

  void add(std::string_view text) {
    const auto words = base::philox(key_, read_);
    Sentence sentence{words[0] | static_cast<uint64_t>(words[1]) << 32, read_++, {}};
    if (full_ && !(sentence < heap_.top())) return;
    sentence.text = text;
    bytes_ += static_cast<int64_t>(text.size());
    heap_.push(std::move(sentence));
    while (static_cast<int64_t>(heap_.size()) > max_sentences_ || (bytes_ > max_bytes_ && heap_.size() > 1)) {
      bytes_ -= static_cast<int64_t>(heap_.top().text.size());
      heap_.pop();
      full_ = true;
    }
  }

  /// In the order of the files.
  std::vector<std::string> take() {
    std::vector<Sentence> kept;
    for (; !heap_.empty(); heap_.pop()) kept.push_back(heap_.top());
    std::sort(kept.begin(), kept.end(), [](const Sentence& a, const Sentence& b) { return a.index < b.index; });
    std::vector<std::string> texts;
    for (auto& sentence : kept) texts.push_back(std::move(sentence.text));
    return texts;
  }

  int64_t read() const { return static_cast<int64_t>(read_); }
  int64_t bytes() const { return bytes_; }

 private:
  uint64_t key_, read_ = 0;
  int64_t max_sentences_, max_bytes_, bytes_ = 0;
  bool full_ = false;  // something was dropped: keys above the largest kept one will be dropped too
  std::priority_queue<Sentence> heap_;
};

// Lines of a text as sentences; long ones are cut before a space, or between characters where there is none.
void add_sentences(std::string_view text, SentenceSample& sample) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    while (!line.empty()) {
      size_t length = line.size();
      if (length > kMaxSentenceBytes) {
        length = line.rfind(' ', kMaxSentenceBytes);
        if (length == std::string_view::npos || length == 0) length = complete_utf8_prefix(line.substr(0, kMaxSentenceBytes));
      }
      std::string sentence(line.substr(0, length));
      // NUL and U+2585 mean something to the trainer itself.
      if (sentence.find('\0') == std::string::npos && sentence.find("\xE2\x96\x85") == std::string::npos) sample.add(sentence);
      line.remove_prefix(length);
    }
  }
}

// Texts with the ends of their lines, cut at one about every few kilobytes.
void add_lines(std::string_view text, SentenceSample& sample) {
  while (!text.empty()) {
    size_t end = text.size() > kMaxSentenceBytes ? text.find('\n', kMaxSentenceBytes) : std::string_view::npos;
    while (end < text.size() && (text[end] == '\n' || text[end] == '\r')) ++end;
    const auto part = text.substr(0, end);
    sample.add(part);
    text.remove_prefix(part.size());
  }
}

class VectorIterator : public sentencepiece::SentenceIterator {
 public:
  explicit VectorIterator(const std::vector<std::string>& sentences) : sentences_(sentences) {}
  bool done() const override { return next_ == sentences_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return sentences_[next_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& sentences_;
  size_t next_ = 0;
};

std::string printable_ascii() {
  std::string all;
  for (char c = '!'; c <= '~'; ++c) all += c;
  return all;
}

// The BPE trainer ends the program when a required character never occurs: this sentence has each once.
std::string ascii_sentence() {
  std::string spaced;
  for (const char c : printable_ascii()) (spaced += c) += ' ';
  return spaced;
}

// A list in SentencePiece's option syntax: comma-separated, quoted where needed.
std::string comma_list(const std::vector<std::string>& values) {
  std::vector<std::string> quoted;
  for (const auto& value : values) {
    std::string text = "\"";
    for (const char c : value) text += c == '"' ? std::string("\"\"") : std::string(1, c);
    quoted.push_back(text + "\"");
  }
  return base::join(quoted, ",");
}

std::unordered_map<std::string, std::string> trainer_arguments(const TrainTokenizerOptions& options) {
  std::unordered_map<std::string, std::string> arguments{
      {"model_type", options.algorithm},
      {"vocab_size", std::to_string(options.vocab_size)},
      {"character_coverage", fmt::format("{}", options.character_coverage)},
      // Every ASCII character has a piece: the export of a unigram model relies on it (export_tokenizer.cpp).
      {"required_chars", printable_ascii()},
      {"byte_fallback", "true"},
      {"normalization_rule_name", "identity"},
      {"add_dummy_prefix", "false"},
      {"remove_extra_whitespaces", "false"},
      {"split_digits", options.split_digits ? "true" : "false"},
      {"allow_whitespace_only_pieces", options.whitespace_pieces ? "true" : "false"},
      {"pad_id", "0"},
      {"eos_id", "1"},
      {"bos_id", "2"},
      {"unk_id", "3"},
      {"pad_piece", "<pad>"},
      {"eos_piece", "<eos>"},
      {"bos_piece", "<bos>"},
      {"unk_piece", "<unk>"},
      {"num_threads", std::to_string(kTrainingThreads)},
      {"input_sentence_size", "0"},
      {"minloglevel", "4"},
  };
  if (!options.user_symbols.empty()) arguments["user_defined_symbols"] = comma_list(options.user_symbols);
  return arguments;
}

void check(const TrainTokenizerOptions& options) {
  if (options.algorithm != "unigram" && options.algorithm != "bpe" && options.algorithm != kByteBpe)
    throw UsageError("'{}' is no tokenizer algorithm: choose unigram, bpe or byte-bpe", options.algorithm);
  if (options.algorithm == kByteBpe && (!options.split_digits || options.whitespace_pieces))
    throw UsageError("--join-digits and --whitespace-pieces are of SentencePiece: byte-bpe has numbers of three digits and runs of spaces");
  const int64_t smallest = 4 + 256 + static_cast<int64_t>(printable_ascii().size()) + static_cast<int64_t>(options.user_symbols.size()) + 1;
  if (options.vocab_size < smallest || options.vocab_size > 1'000'000)
    throw UsageError("a vocabulary of {} is not possible: it must be from {} (special tokens, bytes and ASCII) to 1000000",
                     options.vocab_size, smallest);
  std::set<std::string> seen;
  for (const auto& symbol : options.user_symbols) {
    if (symbol.empty() || symbol.find('\0') != std::string::npos || !is_valid_utf8(symbol))
      throw UsageError("the user symbol '{}' is empty or not UTF-8 text", symbol);
    if (!seen.insert(symbol).second) throw UsageError("the user symbol '{}' is named twice", symbol);
    if (byte_of_piece(symbol) >= 0 || symbol == "<pad>" || symbol == "<eos>" || symbol == "<bos>" || symbol == "<unk>")
      throw UsageError("the user symbol '{}' is the name of a built-in token", symbol);
  }
  if (!(options.character_coverage > 0.9 && options.character_coverage <= 1))
    throw UsageError("the character coverage {} must be above 0.9 and at most 1", options.character_coverage);
  if (options.max_sentences < 1 || options.max_bytes < 1)
    throw UsageError("a sample of {} sentences and {} bytes is empty", options.max_sentences, options.max_bytes);
}

// SentencePiece's messages begin with a place in its own source and a condition.
std::string plain_reason(std::string reason) {
  const auto bracket = reason.rfind("] ");
  if (bracket != std::string::npos && bracket + 2 < reason.size()) reason.erase(0, bracket + 2);
  return reason;
}

// Scores in steps of 1/256: sums of them are exact in float for words of thousands of pieces, so that ties between two ways
// to cut a word are ties in every implementation, whatever its order and width of addition.
void round_scores(SentencePieceModel& model) {
  for (auto& piece : model.pieces) piece.score = std::round(piece.score * 256.0F) / 256.0F;
}

std::string vocabulary_listing(const SentencePieceModel& model) {
  std::string out;
  for (const auto& piece : model.pieces) out += fmt::format("{}\t{}\n", piece.text, piece.score);
  return out;
}

}  // namespace

TrainTokenizerResult train_tokenizer(const TrainTokenizerOptions& options) {
  check(options);
  TextReader reader(options.inputs, options.text);
  SentenceSample sample(options);
  int64_t done_bytes = 0;
  for (TextBlock block; reader.next(block);) {
    const ParsedBlock parsed = parse_block(block, options.text);
    for (const auto& part : parsed.parts) options.algorithm == kByteBpe ? add_lines(part.text, sample) : add_sentences(part.text, sample);
    done_bytes += parsed.read_bytes;
    if (options.progress) options.progress(done_bytes, reader.total_bytes());
  }
  TrainTokenizerResult result{sample.read(), 0, sample.bytes(), options.vocab_size};
  auto sentences = sample.take();
  result.sentences_used = static_cast<int64_t>(sentences.size());
  if (result.bytes_used == 0) throw DataError("{} holds no text to learn a vocabulary from", options.inputs.front().string());

  if (options.output.has_parent_path()) base::make_directories(options.output.parent_path());
  if (options.algorithm == kByteBpe) {
    base::write_file_atomically(options.output, train_byte_bpe(sentences, {.vocab_size = options.vocab_size,
                                                                           .special = {"<pad>", "<eos>", "<bos>"},
                                                                           .symbols = options.user_symbols}));
    base::write_file_atomically(options.output.parent_path() / "tokenizer_config.json", kByteBpeConfig);
    return result;
  }
  sentences.push_back(ascii_sentence());
  VectorIterator iterator(sentences);
  std::string trained;
  const auto status = sentencepiece::SentencePieceTrainer::Train(trainer_arguments(options), &iterator, &trained);
  if (!status.ok())
    throw DataError("SentencePiece cannot learn {} pieces from {} ({} sentences, {}): {}", options.vocab_size,
                    options.inputs.front().string(), result.sentences_used, base::format_bytes(result.bytes_used),
                    plain_reason(status.error_message()));
  auto model = SentencePieceModel::parse(trained, options.output.string());
  if (model.algorithm == SentencePieceModel::Algorithm::unigram) round_scores(model);
  base::write_file_atomically(options.output, model.serialize());
  base::write_file_atomically(fs::path(options.output).replace_extension(".vocab"), vocabulary_listing(model));
  return result;
}

}  // namespace ingot::data
