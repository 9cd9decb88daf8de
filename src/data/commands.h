// What `ingot data …` does, without the parsing of flags: each struct holds the flags of one sub-verb with their defaults, each
// function does the work and returns the exit status. Results go to `out`, progress and remarks to standard error; with `json`
// one JSON document goes to `out` instead. Failures are thrown as the errors of base/error.h.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace ingot::data {

/// Flags that say how text files are read: train-tokenizer and tokenize share them.
struct TextFlags {
  std::vector<std::string> inputs;          // FILE…
  std::string format = "auto";              // --format auto|text|jsonl
  std::string split = "document-per-file";  // --split document-per-file|line|paragraph, of plain text
  std::string field = "text";               // --field NAME, of JSON lines and Parquet
  bool skip_bad = false;                    // --skip-bad: count malformed lines instead of stopping
  bool strict_utf8 = false;                 // --strict-utf8: stop at bytes that are not UTF-8
};

struct TrainTokenizerCommand {
  TextFlags text;
  std::string output;                     // -o, --output FILE.model, of byte-bpe FILE.json
  std::string algorithm = "unigram";      // --type unigram|bpe|byte-bpe
  int64_t vocab_size = 8192;              // --vocab-size N
  double character_coverage = 0.9995;     // --coverage X
  int64_t max_sentences = 1'000'000;      // --max-sentences N
  int64_t max_bytes = int64_t{64} << 20;  // --max-bytes N
  bool join_digits = false;               // --join-digits: numbers may be one piece
  bool whitespace_pieces = false;         // --whitespace-pieces: runs of spaces may be one piece, for code
  std::vector<std::string> user_symbols;  // --symbol TEXT, any number: always one piece
  int64_t seed = 0;                       // --seed N
  bool json = false;                      // --json
};
int run_data_train_tokenizer(const TrainTokenizerCommand& command, std::ostream& out);

struct TokenizeCommand {
  TextFlags text;
  std::string tokenizer;                                       // --tokenizer PATH
  std::string output;                                          // -o, --output PREFIX
  int threads = 0;                                             // --threads N, 0 = one per core
  bool no_eos = false;                                         // --no-eos
  bool bos = false;                                            // --bos
  bool chat = false;                                           // --chat: conversations, of which the answers are learned
  bool preferences = false;                                    // --preferences: of pairs of answers
  std::string chat_template;                                   // --template FILE, in place of the tokenizer's
  int64_t trim_to = 0;                                         // --trim-to N: conversations of more tokens lose thoughts
  std::vector<std::string> think_tags{"<think>", "</think>"};  // --think-tags
  bool overwrite = false;                                      // --overwrite: what is there of other inputs or settings
  double lease_s = 60;  // --lease S: without a sign of life of another process until its piece is done anew
  int64_t piece_bytes = int64_t{256} << 20;
  bool json = false;  // --json
};
int run_data_tokenize(const TokenizeCommand& command, std::ostream& out);

struct InspectCommand {
  std::string path;                  // PREFIX, or either of its files
  std::string tokenizer{};           // --tokenizer PATH: shows text, and checks that the ids fit
  std::optional<int64_t> samples{};  // --samples N: documents that are shown; 3 of which the beginning is, unless said
  std::string output{};              // -o, --output PAGE.html: cli/data_inspect.h
  std::string config{};              // --config RUN.toml, in place of a path: the same
  std::vector<std::string> set{};    // --set key=value, over it
  bool json = false;                 // --json
};
/// In text, of `path`. Status 3 when ids lie outside the tokenizer's vocabulary.
int run_data_inspect(const InspectCommand& command, std::ostream& out);

struct ProcessCommand {
  std::string recipe;  // RECIPE.toml
  std::string output;  // -o, --output FOLDER: in place of the recipe's
  int threads = 0;     // --threads N, 0 = one per core
  bool rules = false;  // --rules: prints measures and sets of rules, and does nothing
  bool json = false;   // --json
};
int run_data_process(const ProcessCommand& command, std::ostream& out);

struct TrainClassifierCommand {
  std::vector<std::string> positive, negative;  // --positive FILE…, --negative FILE…
  std::string output;                           // -o, --output FILE
  std::string field = "text";                   // --field NAME
  int64_t epochs = 5;                           // --epochs N
  int64_t seed = 0;                             // --seed N
  int64_t max_bytes = int64_t{1} << 30;         // --max-bytes N, of text
  bool json = false;                            // --json
};
int run_data_train_classifier(const TrainClassifierCommand& command, std::ostream& out);

struct DiffCommand {
  std::string a, b;       // PREFIX each
  std::string tokenizer;  // --tokenizer PATH: shows text
  int64_t samples = 3;    // --samples N: of each side's own documents
  bool json = false;      // --json
};
/// Status 3 when they differ.
int run_data_diff(const DiffCommand& command, std::ostream& out);

struct ImportBlendCommand {
  // One of the first four; Megatron's flags, and NeMo's file.
  std::vector<std::string> data_path;                                         // --data-path [WEIGHT] PREFIX…
  std::string data_args_path;                                                 // --data-args-path FILE
  std::string per_split_data_args_path;                                       // --per-split-data-args-path FILE.json
  std::string nemo;                                                           // --nemo FILE.yaml
  std::vector<std::string> train_data_path, valid_data_path, test_data_path;  // or these, as --data-path
  std::string output;                                                         // -o, --output FILE.toml; empty = to `out`
  bool json = false;                                                          // --json
};
int run_data_import_blend(const ImportBlendCommand& command, std::ostream& out);

struct ExportTokenizerCommand {
  std::string tokenizer;  // PATH
  std::string output;     // -o, --output FOLDER
  bool json = false;      // --json
};
/// Status 3 when no tokenizer.json with the same ids can be written.
int run_data_export_tokenizer(const ExportTokenizerCommand& command, std::ostream& out);

}  // namespace ingot::data
