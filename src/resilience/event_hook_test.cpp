#include "resilience/event_hook.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/run_events.h"

namespace ingot::resilience {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Folder {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / fmt::format("ingot_event_hook_{}", getpid());
  Folder() { std::filesystem::create_directories(path / "run"); }
  ~Folder() { std::filesystem::remove_all(path); }
};

std::string text_of(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(EventHook, tells_of_each_new_event_once_and_in_order) {
  const Folder folder;
  const auto run = folder.path / "run", told = folder.path / "told";
  base::record_event(run, "start", {{"of", "yesterday"}});
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::atomic<bool> is_known = false;
  {
    const EventHook hook("printf '%s\\n' \"$INGOT_EVENT\" >>" + told.string(), [&] { return is_known ? run.string() : ""; });
    base::record_event(run, "failure", {{"what", "it's \"rank 2\"; $HOME"}, {"last_lines", std::string(200'000, 'x')}});
    is_known = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    EXPECT_THAT(text_of(told), HasSubstr("failure")) << "while the run goes on";
    base::record_event(run, "restart", {{"attempt", 1}});
  }
  const auto text = text_of(told);
  EXPECT_THAT(text, AllOf(Not(HasSubstr("yesterday")), HasSubstr("it's \\\"rank 2\\\"; $HOME"), Not(HasSubstr("last_lines"))));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
  EXPECT_LT(text.find("failure"), text.find("restart"));
}

TEST(EventHook, says_when_its_command_fails_and_ends_what_hangs) {
  const Folder folder;
  for (const auto& [command, said] : {std::pair{"exit 3", "exited with status 3"}, {"sleep 60", "took more than 0.2 s"}}) {
    testing::internal::CaptureStderr();
    const auto began = std::chrono::steady_clock::now();
    {
      const EventHook hook(
          command, [&] { return folder.path.string(); }, 0.2);
      base::record_event(folder.path, "hang", {{"rank", 1}});
    }
    EXPECT_THAT(testing::internal::GetCapturedStderr(), AllOf(HasSubstr("--on-event"), HasSubstr(said)));
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(), 5);
  }
}

}  // namespace
}  // namespace ingot::resilience
