// Text files to a token dataset: parallel, streaming, in memory that does not grow with the files. The output is the same
// byte for byte whatever the number of threads and of processes, on any number of machines that share the output's folder.
//
// Inputs are cut into pieces (tokenize_plan.h). Each becomes a dataset of its own in the folder PREFIX.pieces (piece_folder.h), where calls
// with the same inputs and settings share the work, at once or one after another: what a killed one has finished stays. Who finds all
// pieces finished joins them, writes PREFIX.manifest.json, which says what the dataset was made from, and removes the folder.
#pragma once

#include <functional>

#include "data/chat/chat_template.h"
#include "data/chat/trim.h"
#include "data/indexed_dataset.h"
#include "data/text_reader.h"
#include "data/tokenizer.h"

namespace ingot::data {

struct TokenizeOptions {
  std::vector<fs::path> inputs;
  fs::path output;  // prefix of the .bin and .idx
  TextOptions text;
  bool append_eos = true;    // ends every document; refused when the tokenizer has no eos
  bool prepend_bos = false;  // begins every document
  int threads = 0;           // 0 = one per core
  /// Not null: inputs are conversations (data/chat/conversation.h), which become what this template makes of them, without eos or bos of
  /// their own, and only their answers are learned. Must outlive the call.
  const chat::ChatTemplate* chat_template = nullptr;
  chat::TrimOptions trim;    // with chat_template, of conversations
  bool preferences = false;  // with chat_template: lines are pairs of answers, which become two documents each, the chosen one first
  bool overwrite = false;    // what is there of other inputs or settings
  int64_t piece_bytes = int64_t{256} << 20;
  double lease_s = 60;  // without a sign of life of another process until what it was at is done anew
  /// Called on the calling thread with the bytes of input done so far, by all processes, and their total (0 when it is not known).
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;
};

/// What TokenizeOptions::trim did to conversations that are too long.
struct TrimCounts {
  int64_t trimmed = 0, left_out = 0;            // conversations
  int64_t cut_tokens = 0, left_out_tokens = 0;  // taken out of the trimmed ones; of those left out
  int64_t thoughts = 0, removed_thoughts = 0;   // of the trimmed ones; removed whole
  std::vector<std::string> examples;            // "file:line: …" of the first ones

  void add(const TrimCounts& later);
  static constexpr size_t kExamples = 5;
};

struct TokenizeResult {
  int64_t documents = 0, tokens = 0;
  int64_t input_bytes = 0;      // of text; of Parquet as JSON lines
  int64_t empty_documents = 0;  // left out
  int64_t learned = 0;          // tokens of answers, of conversations
  int64_t bad_lines = 0;        // skipped
  int64_t invalid_utf8 = 0;     // sequences replaced by U+FFFD
  TrimCounts trim;
  std::string first_problem;  // "file:line: reason" of the first bad line or replacement
  TokenType token_type = TokenType::int32;
  int64_t pieces = 0, own_pieces = 0;  // own: done by this call; the others were there, or came from other processes
  bool was_there = false;              // of the same inputs and settings: nothing was done
};

/// Throws DataError for bad text (file and line, or byte, named), FileError for files, and UsageError where something of other inputs or
/// settings lies under the output's names; nothing appears under them then.
TokenizeResult tokenize(const Tokenizer& tokenizer, const TokenizeOptions& options);

}  // namespace ingot::data
