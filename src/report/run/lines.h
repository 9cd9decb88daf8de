// Cuts the pieces of a file into lines. Never more than one line is in memory, and of that one no more than a limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ingot::report {

/// A last line that no newline ends: a whole line in a file that is at rest, the beginning of one while somebody writes.
enum class LastLine { counts, is_being_written };

class LineCutter {
 public:
  explicit LineCutter(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Calls take(std::optional<std::string_view>) for each line that the piece ends, without its newline; nothing stands for a line
  /// beyond the limit.
  template <class Take>
  void feed(std::string_view piece, const Take& take) {
    while (!piece.empty()) {
      const size_t newline = piece.find('\n');
      const auto part = piece.substr(0, newline);
      overlong_ = overlong_ || line_.size() + part.size() > limit_bytes_;
      if (overlong_) line_.clear();
      else line_ += part;
      done_bytes_ += static_cast<int64_t>(part.size());
      if (newline == std::string_view::npos) return;
      ++done_bytes_;
      end_line(take);
      piece.remove_prefix(newline + 1);
    }
  }

  /// After the last piece.
  template <class Take>
  void finish(LastLine last, const Take& take) {
    if (last == LastLine::counts && (!line_.empty() || overlong_)) end_line(take);
  }

  int64_t done_bytes() const { return done_bytes_; }

 private:
  template <class Take>
  void end_line(const Take& take) {
    take(overlong_ ? std::nullopt : std::optional<std::string_view>(line_));
    line_.clear();
    overlong_ = false;
  }

  size_t limit_bytes_;
  std::string line_;  // what is there of a line that no newline has ended yet
  bool overlong_ = false;
  int64_t done_bytes_ = 0;
};

}  // namespace ingot::report
