#include "base/progress.h"

#include <gtest/gtest.h>

namespace ingot::base {
namespace {

struct Progress : ::testing::Test {
  std::string shown;
  double time_s = 100;
  ProgressOutput output(bool terminal, int columns, double every_s) {
    return {[this](std::string_view text) { shown += text; }, [this] { return time_s; }, terminal, columns, every_s};
  }
};

TEST_F(Progress, terminal_line_is_redrawn_with_bar_rate_and_time_left) {
  ProgressBar bar("read", 4000, ProgressUnit::count, output(true, 80, 0.1));
  bar.update(1);
  EXPECT_EQ(shown, "") << "too early to draw";
  time_s += 10;
  bar.update(1000);
  EXPECT_EQ(shown, "\rread [=======                       ]  25 %  1 k of 4 k  100/s  30.0 s left\033[K");
  shown.clear();
  time_s += 30;
  bar.update(4000, "almost");
  bar.finish("done");
  EXPECT_TRUE(shown.ends_with("100 %  4 k of 4 k  100/s  in 40.0 s  done\033[K\n")) << shown;
}

TEST_F(Progress, narrow_terminal_gets_no_bar_and_never_a_wrapped_line) {
  ProgressBar bar("a rather long label", int64_t{1} << 30, ProgressUnit::bytes, output(true, 40, 0));
  time_s += 1;
  bar.update(1 << 20);
  EXPECT_EQ(shown, "\ra rather long label    0 %  1.0 MiB of \033[K");
}

TEST_F(Progress, files_get_whole_lines_now_and_then) {
  {
    ProgressBar bar("read", 0, ProgressUnit::bytes, output(false, 80, 5), 1024);
    for (int i = 1; i <= 12; ++i) {
      time_s += 1;
      bar.update(1024 + i * 1024);
    }
    bar.finish();
  }
  EXPECT_EQ(shown, "read  6.0 KiB  1.0 KiB/s\nread  11.0 KiB  1.0 KiB/s\nread  13.0 KiB  1.0 KiB/s  in 12.0 s\n");
}

TEST_F(Progress, abandoned_bar_ends_its_line) {
  {
    ProgressBar bar("read", 10, ProgressUnit::count, output(true, 80, 0));
    bar.update(1);
  }
  EXPECT_EQ(shown.back(), '\n');
}

}  // namespace
}  // namespace ingot::base
