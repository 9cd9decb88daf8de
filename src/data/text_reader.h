// Documents out of text files, streaming: a reader cuts files into blocks of about a megabyte at places where documents may
// be cut, and parse_block() turns one block into documents, on any thread. Plain text, JSON lines, and Parquet's rows as such; everything
// that comes out is valid UTF-8.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "data/byte_stream.h"
#include "data/text_source.h"

namespace ingot::data {

namespace fs = base::fs;

// automatic: .jsonl, .json and .ndjson are JSON lines, all else is text. A Parquet file is known by its beginning, whatever is said here.
enum class TextFormat { automatic, text, jsonl };
enum class DocumentSplit { file, line, paragraph };  // what a document is in plain text; paragraphs end at blank lines

/// The names that the command line uses. Throw UsageError naming the choices.
TextFormat parse_text_format(const std::string& name);
DocumentSplit parse_document_split(const std::string& name);

struct TextOptions {
  TextFormat format = TextFormat::automatic;
  DocumentSplit split = DocumentSplit::file;
  std::string field = "text";     // of a JSON line, or a column of Parquet
  bool whole_lines = false;       // a JSON line comes out as it is, for who reads more of it than a text
  bool skip_bad = false;          // count malformed JSON lines instead of stopping at the first
  bool strict_utf8 = false;       // stop at bytes that are not UTF-8 instead of replacing them by U+FFFD
  int64_t block_bytes = 1 << 20;  // tests make it small
};

/// A piece of a file that holds whole documents, save that its first and last may continue in its neighbours.
struct TextBlock {
  std::string file;
  bool jsonl = false;
  int64_t first_line = 1;
  bool continues = false;   // begins inside a document
  bool open_ended = false;  // ends inside a document
  std::string bytes;
  bool has_rows = false;   // lines are rows of a table
  int64_t read_bytes = 0;  // of the file, for progress

  int64_t begin = 0;         // byte of the file where it begins
  bool is_of_range = false;  // that does not begin where the file does: lines are counted from the range's beginning

  /// "file:line", of a table "file: row N", counted from 1; of such a range "file, byte N", where the line begins.
  std::string where(int64_t line) const;
};

struct TextPart {
  std::string text;
  bool ends_document = true;
  int64_t line = 0;  // of the file, where it begins
};

struct ParsedBlock {
  std::vector<TextPart> parts;
  int64_t bytes = 0;          // of the block
  int64_t read_bytes = 0;     // of the file, for progress
  int64_t bad_lines = 0;      // skipped
  int64_t invalid_utf8 = 0;   // replaced
  std::string first_problem;  // "file:line: reason" of the first of either
};

class TextReader {
 public:
  /// Looks at every file first: a missing or unreadable one is a FileError before any work is done.
  TextReader(std::vector<fs::path> files, TextOptions options);
  /// The same of ranges, which are not looked at and do not count in total_bytes(). The blocks of a range of JSON lines, or of plain text
  /// that begins where a document does, hold what those of the whole file hold, cut at the same places.
  TextReader(std::vector<FileRange> ranges, TextOptions options);
  ~TextReader();

  /// The next block, files in the order given; false at the end. Throws DataError for files that hold no text (NUL bytes,
  /// UTF-16, archives), for damaged Parquet, and FileError when reading fails.
  bool next(TextBlock& block);
  /// Which of the ranges the last block is of.
  size_t range_number() const { return next_file_ - 1; }

  /// Of all files; the blocks' read_bytes add up to it.
  int64_t total_bytes() const { return total_bytes_; }
  const TextOptions& options() const { return options_; }

 private:
  void open_next_file();
  void fill(int64_t bytes);
  size_t cut(bool& inside_document) const;

  std::vector<FileRange> files_;
  TextOptions options_;
  int64_t total_bytes_ = 0;
  size_t next_file_ = 0;
  std::unique_ptr<TextSource> file_;
  bool jsonl_ = false, at_end_ = false, continues_ = false;
  int64_t line_ = 1, reported_bytes_ = 0, at_byte_ = 0;
  std::string name_, pending_;
};

/// Whether a file's lines are JSON, by the options or its name.
bool is_json_lines(const fs::path& path, TextFormat format);

/// Where plain text is cut behind `nominal`, so that no document is divided: behind the line that `nominal` lies in, or with paragraphs the
/// first blank line after that one. The size of the file where there is none. Throws FileError.
int64_t document_boundary(const fs::path& path, int64_t nominal, bool by_paragraph);

/// The documents of a block. Throws DataError "file:line: …" (TextBlock::where) for a malformed line unless options.skip_bad.
ParsedBlock parse_block(const TextBlock& block, const TextOptions& options);

}  // namespace ingot::data
