#include "base/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>

#include "base/text.h"

namespace ingot::base {
namespace {

constexpr double kTerminalEvery_s = 0.1, kLogEvery_s = 5;
constexpr int64_t kLongestBar = 30, kShortestBar = 5;

std::string amount(double value, ProgressUnit unit) {
  return unit == ProgressUnit::bytes ? format_bytes(static_cast<int64_t>(value)) : format_count(value);
}

}  // namespace

ProgressOutput standard_progress_output() {
  ProgressOutput output;
  output.write = [](std::string_view text) {
    // A full disk or closed pipe behind standard error must not end the work that is being shown.
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  };
  output.now_s = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  const char* type = std::getenv("TERM");
  output.terminal = ::isatty(STDERR_FILENO) == 1 && type && std::string_view(type) != "dumb";
  winsize size{};
  if (output.terminal && ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) output.columns = size.ws_col;
  output.every_s = output.terminal ? kTerminalEvery_s : kLogEvery_s;
  return output;
}

ProgressBar::ProgressBar(std::string label, int64_t total, ProgressUnit unit, ProgressOutput output, int64_t done)
    : label_(std::move(label)),
      total_(total),
      first_(done),
      done_(done),
      unit_(unit),
      output_(std::move(output)),
      started_s_(output_.now_s()),
      drawn_s_(started_s_) {}

ProgressBar::~ProgressBar() {
  if (line_open_) output_.write("\n");
}

std::string ProgressBar::line(double now_s, bool final) const {
  const double passed_s = now_s - started_s_;
  const double rate = passed_s > 0 ? static_cast<double>(done_ - first_) / passed_s : 0;
  const double share = total_ > 0 ? std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0) : 0;
  std::string figures = amount(static_cast<double>(done_), unit_);
  if (total_ > 0)
    figures = fmt::format("{:3.0f} %  {} of {}", std::floor(share * 100), figures, amount(static_cast<double>(total_), unit_));
  if (rate > 0) figures += fmt::format("  {}/s", amount(rate, unit_));
  if (final) figures += fmt::format("  in {}", format_duration(passed_s));
  else if (rate > 0 && total_ > 0)
    figures += fmt::format("  {} left", format_duration(static_cast<double>(std::max<int64_t>(total_ - done_, 0)) / rate));
  if (!remark_.empty()) figures += "  " + remark_;

  const int64_t room = output_.columns - 1 - static_cast<int64_t>(label_.size() + figures.size()) - 5;  // two brackets and the gaps
  if (!output_.terminal || total_ <= 0 || room < kShortestBar) return fmt::format("{}  {}", label_, figures);
  const int64_t width = std::min(room, kLongestBar), filled = static_cast<int64_t>(share * static_cast<double>(width));
  return fmt::format("{} [{}{}] {}", label_, std::string(static_cast<size_t>(filled), '='),
                     std::string(static_cast<size_t>(width - filled), ' '), figures);
}

void ProgressBar::draw(double now_s, bool final) {
  std::string text = line(now_s, final);
  if (output_.terminal) {
    if (static_cast<int64_t>(text.size()) >= output_.columns)
      text.resize(static_cast<size_t>(std::max(output_.columns - 1, 1)));  // a wrapped line cannot be redrawn
    text = "\r" + text + "\033[K";
    line_open_ = !final;
    if (final) text += "\n";
  } else {
    text += "\n";
  }
  output_.write(text);
  drawn_s_ = now_s;
}

void ProgressBar::update(int64_t done, std::string_view remark) {
  done_ = done;
  remark_ = remark;
  const double now_s = output_.now_s();
  if (now_s - drawn_s_ >= output_.every_s) draw(now_s, false);
}

void ProgressBar::finish(std::string_view remark) {
  if (finished_) return;
  finished_ = true;
  remark_ = remark;
  draw(output_.now_s(), true);
}

}  // namespace ingot::base
