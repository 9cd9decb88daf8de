#include "resilience/hardware_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>

namespace ingot::resilience {
namespace {

namespace fs = std::filesystem;
using health::Counted;
using testing::ElementsAre;

std::vector<std::string> words(const std::vector<health::HardwareFinding>& findings) {
  std::vector<std::string> all;
  for (const auto& finding : findings) all.push_back(finding.what);
  return all;
}

health::HardwareReading reading(double corrected, double throttled_now = 0) {
  return {{{Counted::memory_corrected, "mc0", corrected}, {Counted::throttled_now, "GPU 0", throttled_now}}, {}};
}

TEST(HardwareNews, are_the_first_rise_and_then_what_has_come_together) {
  HardwareNews news;
  EXPECT_TRUE(news.take(reading(100), 0).empty());  // from before the job
  EXPECT_THAT(words(news.take(reading(101), 10)), ElementsAre("1 corrected memory errors of mc0"));
  for (int i = 2; i < 60; ++i) EXPECT_TRUE(news.take(reading(100 + i), 10.0 * i).empty()) << i;
  EXPECT_THAT(words(news.take(reading(160), 620)), ElementsAre("59 corrected memory errors of mc0"));
  EXPECT_TRUE(news.take(reading(160), 2000).empty());
}

TEST(HardwareNews, of_flags_and_of_counters_that_begin_anew) {
  HardwareNews news;
  EXPECT_TRUE(news.take(reading(100), 0).empty());
  EXPECT_THAT(words(news.take(reading(100, 1), 10)), ElementsAre("GPU 0: throttled for heat or power"));
  EXPECT_TRUE(news.take(reading(100, 0), 20).empty());
  EXPECT_TRUE(news.take(reading(100, 1), 30).empty());  // on and off again
  EXPECT_TRUE(news.take(reading(0, 0), 1000).empty());
  EXPECT_THAT(words(news.take(reading(2, 1), 1010)), ElementsAre("2 corrected memory errors of mc0", "GPU 0: throttled for heat or power"));
}

TEST(HardwareWatch, says_what_is_new_and_what_explains_an_attempt) {
  const auto root = fs::temp_directory_path() / ("ingot-watch-" + std::to_string(::getpid()));
  fs::create_directories(root / "proc");
  const auto write = [&](int kills) { std::ofstream(root / "proc/vmstat") << "oom_kill " << kills << "\n"; };
  write(4);
  std::atomic<int> findings = 0;
  HardwareWatch watch({.every_s = 0.01, .root = root.string(), .gpu_library = "libnothing.so"},
                      [&](const auto& finding) { findings += finding.what == "1 processes killed since memory was short" ? 1 : 100; });
  watch.begin_attempt();
  EXPECT_EQ(watch.explain(), "");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it has seen the 4
  write(5);
  EXPECT_EQ(watch.explain(), "this machine has counted meanwhile: 1 processes killed since memory was short");
  for (int i = 0; i < 500 && findings == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(findings, 1);
  watch.begin_attempt();
  EXPECT_EQ(watch.explain(), "");
  fs::remove_all(root);
}

}  // namespace
}  // namespace ingot::resilience
