#include "data/text_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "data/utf8.h"

namespace ingot::data {
namespace {

using base::DataError;

constexpr int64_t kMaxPendingBytes = int64_t{256} << 20;  // a single line longer than this is not a line
constexpr int64_t kMaxDocumentBlock = int64_t{8} << 20;   // beyond it a paragraph or line of text is handed on in pieces

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\f\v") == std::string_view::npos; }

// Takes one top-level text field out of a JSON object, without building the rest.
class FieldReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit FieldReader(const std::string& field) : field_(field) {}

  bool key(string_t& name) override {
    at_field_ = depth_ == 1 && name == field_;
    if (depth_ == 1 && !at_field_ && keys_.size() < 64) keys_.push_back(name);
    return true;
  }
  bool string(string_t& value) override {
    if (at_field_) {
      text = std::move(value);
      found = true;
    }
    return scalar();
  }
  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(number_integer_t) override { return scalar(); }
  bool number_unsigned(number_unsigned_t) override { return scalar(); }
  bool number_float(number_float_t, const string_t&) override { return scalar(); }
  bool binary(binary_t&) override { return scalar(); }
  bool start_object(std::size_t) override { return open(true); }
  bool start_array(std::size_t) override { return open(false); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    problem = error.what();
    if (const auto begin = problem.find("] "); begin != std::string::npos) problem.erase(0, begin + 2);  // the library's own tag
    return false;
  }

  std::string why_missing() const {
    if (!object_) return "the line is not a JSON object";
    return seen_ ? fmt::format("'{}' is not a text", field_)
                 : fmt::format("there is no field '{}'{}", field_, base::did_you_mean(field_, keys_));
  }

  std::string text, problem;
  bool found = false;

 private:
  bool scalar() {
    seen_ |= at_field_;
    at_field_ = false;
    return true;
  }
  bool open(bool object) {
    if (depth_ == 0) object_ = object;
    ++depth_;
    return scalar();
  }
  bool close() {
    --depth_;
    return true;
  }

  const std::string& field_;
  std::vector<std::string> keys_;
  int64_t depth_ = 0;
  bool at_field_ = false, object_ = false, seen_ = false;
};

// Walks the lines of a block; the last one may lack its newline.
struct Lines {
  std::string_view rest;
  int64_t number;
  std::string_view line;  // with its newline
  bool next() {
    if (!line.empty()) ++number;
    if (rest.empty()) return false;
    const size_t end = std::min(rest.find('\n'), rest.size() - 1) + 1;
    line = rest.substr(0, end);
    rest.remove_prefix(end);
    return true;
  }
};

std::string_view without_newline(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

class BlockParser {
 public:
  BlockParser(const TextBlock& block, const TextOptions& options) : block_(block), options_(options) {
    result_.bytes = static_cast<int64_t>(block.bytes.size());
    result_.read_bytes = block.read_bytes;
  }

  ParsedBlock run() {
    if (block_.jsonl) json_lines();
    else if (options_.split == DocumentSplit::file) add(block_.bytes, block_.first_line, !block_.open_ended);
    else if (options_.split == DocumentSplit::line) lines();
    else paragraphs();
    if (block_.continues && result_.parts.empty()) result_.parts.push_back({"", true, block_.first_line});  // the file ended at the cut
    return std::move(result_);
  }

 private:
  void note(int64_t line, const std::string& reason) {
    if (result_.first_problem.empty()) result_.first_problem = fmt::format("{}: {}", block_.where(line), reason);
  }

  std::string valid(std::string_view text, int64_t line) {
    if (is_valid_utf8(text)) return std::string(text);
    if (options_.strict_utf8)
      throw DataError("{}: the bytes are not UTF-8: convert the file, or let them be replaced by U+FFFD", block_.where(line));
    note(line, "bytes that are not UTF-8 became U+FFFD");
    return replace_invalid_utf8(text, result_.invalid_utf8);
  }

  void add(std::string_view text, int64_t line, bool ends) { result_.parts.push_back({valid(text, line), ends, line}); }

  void json_lines() {
    for (Lines lines{block_.bytes, block_.first_line, {}}; lines.next();) {
      const auto line = without_newline(lines.line);
      if (is_blank(line)) continue;
      std::string text = valid(line, lines.number);
      if (options_.whole_lines) {
        result_.parts.push_back({std::move(text), true, lines.number});
        continue;
      }
      FieldReader reader(options_.field);
      const bool parsed = nlohmann::json::sax_parse(text, &reader);
      if (parsed && reader.found) {
        result_.parts.push_back({std::move(reader.text), true, lines.number});
        continue;
      }
      const std::string reason = parsed ? reader.why_missing() : reader.problem;
      if (!options_.skip_bad)
        throw DataError("{}: {}; mend the {}, choose another --field, or pass --skip-bad", block_.where(lines.number), reason,
                        block_.has_rows ? "row" : "line");
      note(lines.number, reason);
      ++result_.bad_lines;
    }
  }

  void lines() {
    bool inside = block_.continues;
    for (Lines lines{block_.bytes, block_.first_line, {}}; lines.next();) {
      const bool last_is_open = lines.rest.empty() && block_.open_ended;
      const auto line = last_is_open ? lines.line : without_newline(lines.line);
      if (inside || last_is_open || !is_blank(line)) add(line, lines.number, !last_is_open);
      inside = false;
    }
  }

  // A paragraph runs from its first line that is not blank to its last one, without that one's newline.
  void paragraphs() {
    const char* begin = block_.continues ? block_.bytes.data() : nullptr;
    const char* end = begin;
    int64_t first_line = block_.first_line;
    const auto flush = [&] {
      if (begin) add({begin, static_cast<size_t>(end - begin)}, first_line, true);
      begin = nullptr;
    };
    for (Lines lines{block_.bytes, block_.first_line, {}}; lines.next();) {
      const auto line = without_newline(lines.line);
      if (is_blank(line)) {
        flush();
        continue;
      }
      if (!begin) begin = line.data(), first_line = lines.number;
      end = line.data() + line.size();
    }
    if (begin && block_.open_ended) add({begin, static_cast<size_t>(block_.bytes.data() + block_.bytes.size() - begin)}, first_line, false);
    else flush();
  }

  const TextBlock& block_;
  const TextOptions& options_;
  ParsedBlock result_;
};

}  // namespace

TextFormat parse_text_format(const std::string& name) {
  if (name == "auto") return TextFormat::automatic;
  if (name == "text") return TextFormat::text;
  if (name == "jsonl") return TextFormat::jsonl;
  throw base::UsageError("'{}' is not a format: choose auto, text or jsonl", name);
}

DocumentSplit parse_document_split(const std::string& name) {
  if (name == "file" || name == "document-per-file") return DocumentSplit::file;
  if (name == "line") return DocumentSplit::line;
  if (name == "paragraph") return DocumentSplit::paragraph;
  throw base::UsageError("'{}' is no way to split text: choose document-per-file, line or paragraph", name);
}

TextReader::TextReader(std::vector<fs::path> files, TextOptions options) : options_(std::move(options)) {
  if (files.empty()) throw base::UsageError("no input file was named");
  for (auto& path : files) {
    total_bytes_ += readable_bytes(path);
    files_.push_back({std::move(path)});
  }
}

TextReader::TextReader(std::vector<FileRange> ranges, TextOptions options) : files_(std::move(ranges)), options_(std::move(options)) {}

TextReader::~TextReader() = default;

std::string TextBlock::where(int64_t line) const {
  if (!is_of_range) return fmt::format("{}{}{}", file, has_rows ? ": row " : ":", line);
  size_t at = 0;
  for (int64_t l = first_line; l < line; ++l) at = bytes.find('\n', at) + 1;
  return fmt::format("{}, byte {}", file, begin + static_cast<int64_t>(at));
}

bool is_json_lines(const fs::path& path, TextFormat format) {
  if (format != TextFormat::automatic) return format == TextFormat::jsonl;
  const auto extension = name_when_unpacked(path).extension();
  return extension == ".jsonl" || extension == ".json" || extension == ".ndjson";
}

int64_t document_boundary(const fs::path& path, int64_t nominal, bool by_paragraph) {
  if (nominal == 0) return 0;
  int64_t at = nominal;
  const auto bytes = open_bytes(FileRange{path, at, -1});
  std::string chunk;
  bool is_blank_so_far = false;  // the present line, whose beginning is not known at first
  do {
    chunk.resize(size_t{64} << 10);
    chunk.resize(bytes->read(chunk.data(), chunk.size()));
    for (Lines lines{chunk, 0, {}}; lines.next();) {
      at += static_cast<int64_t>(lines.line.size());
      is_blank_so_far = is_blank_so_far && is_blank(without_newline(lines.line));
      if (!lines.line.ends_with('\n')) continue;
      if (!by_paragraph || is_blank_so_far) return at;
      is_blank_so_far = true;
    }
  } while (!chunk.empty());
  return at;
}

void TextReader::open_next_file() {
  const auto& range = files_[next_file_++];
  name_ = range.path.string();
  file_ = open_text_source(range, options_.whole_lines ? "" : options_.field);
  jsonl_ = file_->has_rows() || is_json_lines(range.path, options_.format);
  pending_.clear();
  at_end_ = continues_ = false;
  line_ = 1;
  reported_bytes_ = 0;
  at_byte_ = range.begin;
  fill(options_.block_bytes - range.begin % options_.block_bytes);
}

// Reads one more block's worth; reads end at the same places of a file wherever they began. Of a line of JSON without an end as much again
// as there is: it is looked through a few times, not once for each block.
void TextReader::fill(int64_t bytes) {
  if (jsonl_) bytes = std::max(bytes, std::min(static_cast<int64_t>(pending_.size()), kMaxPendingBytes / 2));
  at_end_ = !file_->read(pending_, static_cast<size_t>(bytes));
}

// Where the pending bytes may be cut: 0 when more must be read first. `inside_document` says that the cut divides one.
size_t TextReader::cut(bool& inside_document) const {
  const std::string_view text = pending_;
  inside_document = false;
  const size_t last_newline = text.rfind('\n');
  const bool has_line = last_newline != std::string_view::npos;
  if (jsonl_ || options_.split == DocumentSplit::line) {
    if (has_line) return last_newline + 1;
  } else if (options_.split == DocumentSplit::paragraph && has_line) {
    for (size_t end = last_newline + 1; end > 0;) {  // the last blank line
      const size_t before = end >= 2 ? text.rfind('\n', end - 2) : std::string_view::npos;
      const size_t begin = before == std::string_view::npos ? 0 : before + 1;
      if (begin > 0 && is_blank(text.substr(begin, end - 1 - begin))) return end;
      end = begin;
    }
  }
  if (jsonl_) return 0;
  if (options_.split != DocumentSplit::file && static_cast<int64_t>(text.size()) < std::max(kMaxDocumentBlock, options_.block_bytes))
    return 0;
  inside_document = true;
  // A word follows the cut, so that no run of white space, which tokenizers may join, is divided.
  for (size_t end = last_newline; has_line && end != std::string_view::npos && end > 0; end = text.rfind('\n', end - 1)) {
    if (end + 1 < text.size() && static_cast<unsigned char>(text[end + 1]) > ' ') return end + 1;
  }
  return complete_utf8_prefix(text);
}

bool TextReader::next(TextBlock& block) {
  while (true) {
    if (!file_) {
      if (next_file_ == files_.size()) return false;
      open_next_file();
    }
    size_t end = 0;
    bool inside = false;
    if (static_cast<int64_t>(pending_.size()) >= options_.block_bytes && !at_end_) end = cut(inside);
    if (end == 0 && !at_end_) {
      if (static_cast<int64_t>(pending_.size()) > kMaxPendingBytes)
        throw DataError("{}:{}: the line is longer than {}: it is not JSON lines", name_, line_, base::format_bytes(kMaxPendingBytes));
      fill(options_.block_bytes);
      continue;
    }
    if (at_end_) end = pending_.size();
    // The block's share of what was read, which of a plain file is its own bytes.
    const int64_t unreported = file_->read_bytes() - reported_bytes_;
    const double share = pending_.empty() ? 1 : static_cast<double>(end) / static_cast<double>(pending_.size());
    const auto read_bytes = static_cast<int64_t>(static_cast<double>(unreported) * share + 0.5);
    reported_bytes_ += read_bytes;
    block = {name_,
             jsonl_,
             line_,
             continues_,
             inside,
             pending_.substr(0, end),
             file_->has_rows(),
             read_bytes,
             at_byte_,
             files_[next_file_ - 1].begin > 0};
    at_byte_ += static_cast<int64_t>(end);
    pending_.erase(0, end);
    continues_ = inside;
    line_ += std::count(block.bytes.begin(), block.bytes.end(), '\n');
    if (at_end_) file_.reset();
    if (!block.bytes.empty() || block.continues) return true;
  }
}

ParsedBlock parse_block(const TextBlock& block, const TextOptions& options) { return BlockParser(block, options).run(); }

}  // namespace ingot::data
