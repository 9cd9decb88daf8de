// A progress bar for people, on standard error: on a terminal one line that is redrawn, with bar, share, rate and time left;
// into a file or pipe a plain line every few seconds. One thread; nothing else should write to the terminal meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace ingot::base {

enum class ProgressUnit { bytes, count };

/// Where a bar is drawn and what time it is: tests give their own.
struct ProgressOutput {
  std::function<void(std::string_view)> write;
  std::function<double()> now_s;  // monotonic
  bool terminal = false;
  int columns = 80;
  double every_s = 0.1;  // between two drawings
};

/// Standard error, as it is: a terminal of some width, or not.
ProgressOutput standard_progress_output();

class ProgressBar {
 public:
  /// `total` 0 means unknown: then only what is done and its rate are shown. `done` is where the work begins, so that the rate
  /// of a resumed job is right.
  ProgressBar(std::string label, int64_t total, ProgressUnit unit, ProgressOutput output = standard_progress_output(), int64_t done = 0);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  /// Ends the line if finish() was never reached, so that an error message begins on one of its own.
  ~ProgressBar();

  /// What is done by now, with an optional remark at the end of the line. Cheap: draws at most every `every_s`.
  void update(int64_t done, std::string_view remark = {});
  void set_total(int64_t total) { total_ = total; }
  /// Draws the final state with the time it took.
  void finish(std::string_view remark = {});

 private:
  std::string line(double now_s, bool final) const;
  void draw(double now_s, bool final);

  std::string label_, remark_;
  int64_t total_, first_, done_;
  ProgressUnit unit_;
  ProgressOutput output_;
  double started_s_, drawn_s_;
  bool line_open_ = false, finished_ = false;
};

}  // namespace ingot::base
