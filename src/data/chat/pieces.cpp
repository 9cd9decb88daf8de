#include "data/chat/pieces.h"

#include <algorithm>

namespace ingot::data::chat {
namespace {

class Cutter {
 public:
  Cutter(std::string_view source, bool trims) : source_(source), trims_(trims) {
    if (trims_ && source_.ends_with("\n")) source_.remove_suffix(1);  // as Jinja without keep_trailing_newline
  }

  std::vector<Piece> run() {
    while (at_ < source_.size()) {
      const auto open = next_open();
      text(open);
      if (open == std::string_view::npos) break;
      tag(open);
    }
    return std::move(pieces_);
  }

 private:
  size_t next_open() const {
    for (size_t at = source_.find('{', at_); at != std::string_view::npos; at = source_.find('{', at + 1))
      if (at + 1 < source_.size() && (source_[at + 1] == '{' || source_[at + 1] == '%' || source_[at + 1] == '#')) return at;
    return std::string_view::npos;
  }

  void text(size_t end) {
    auto text = source_.substr(at_, end == std::string_view::npos ? end : end - at_);
    const auto whole = text;
    bool begins_template_or_line = whole.data() == source_.data();
    if (strips_) {
      while (!text.empty() && is_space(text.front())) begins_template_or_line = text.front() == '\n', text.remove_prefix(1);
    } else if (trims_newline_) {
      begins_template_or_line = begins_template_or_line || text.starts_with("\n") || text.starts_with("\r\n");
      if (text.starts_with("\r\n")) text.remove_prefix(2);
      else if (text.starts_with("\n")) text.remove_prefix(1);
    }
    if (end != std::string_view::npos) {
      const char kind = source_[end + 1], sign = end + 2 < source_.size() ? source_[end + 2] : ' ';
      if (sign == '-') {
        while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
      } else if (trims_ && kind != '{' && sign != '+') {  // lstrip_blocks: white space alone before a block on its line
        size_t keep = text.size();
        while (keep > 0 && (text[keep - 1] == ' ' || text[keep - 1] == '\t')) --keep;
        const bool begins_line = keep > 0 ? text[keep - 1] == '\n' : begins_template_or_line;
        if (begins_line) text = text.substr(0, keep);
      }
    }
    if (!text.empty()) pieces_.push_back({Piece::Kind::text, std::string(text), line_});
    line_ += static_cast<int>(std::count(whole.begin(), whole.end(), '\n'));
    at_ = end;
  }

  // The end of a tag, with texts and brackets within skipped.
  size_t end_of(size_t from, std::string_view close) const {
    char quote = 0;
    int open = 0;
    for (size_t i = from; i < source_.size(); ++i) {
      if (quote != 0) {
        if (source_[i] == '\\') ++i;
        else if (source_[i] == quote) quote = 0;
      } else if (close != "#}" && (source_[i] == '"' || source_[i] == '\'')) {
        quote = source_[i];
      } else if (open == 0 && source_.substr(i).starts_with(close)) {
        return i;
      } else if (close != "#}" && std::string_view("([{").find(source_[i]) != std::string_view::npos) {
        ++open;
      } else if (close != "#}" && open > 0 && std::string_view(")]}").find(source_[i]) != std::string_view::npos) {
        --open;
      }
    }
    fail(line_, "a tag is not closed by {}", close);
  }

  void tag(size_t open) {
    const char kind = source_[open + 1];
    const std::string_view close = kind == '{' ? "}}" : kind == '%' ? "%}" : "#}";
    size_t begin = open + 2;
    const size_t end = end_of(begin, close);
    if (begin < end && (source_[begin] == '-' || source_[begin] == '+')) ++begin;
    const bool strips = end > begin && source_[end - 1] == '-', keeps = end > begin && source_[end - 1] == '+';
    std::string content(source_.substr(begin, end - begin - (strips || keeps ? 1 : 0)));
    if (kind == '{') pieces_.push_back({Piece::Kind::output, content, line_});
    if (kind == '%') pieces_.push_back({Piece::Kind::statement, content, line_});
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<std::ptrdiff_t>(open), source_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    strips_ = strips;
    trims_newline_ = trims_ && kind != '{' && !keeps;  // trim_blocks
    at_ = end + 2;
  }

  std::string_view source_;
  const bool trims_;
  size_t at_ = 0;
  int line_ = 1;
  bool strips_ = false, trims_newline_ = false;
  std::vector<Piece> pieces_;
};

}  // namespace

std::vector<Piece> cut(std::string_view source, bool trims) { return Cutter(source, trims).run(); }

}  // namespace ingot::data::chat
