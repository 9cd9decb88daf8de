// What happened to a run, as the page tells it.
#include "report/events/section.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "report/run/fake_run.h"
#include "report/run/page.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct EventsSection : ::testing::Test {
  const fs::path folder = fs::temp_directory_path() / ("events_section_" + std::to_string(getpid()));
  EventsSection() { write_fake_run(folder, {.steps = 60, .finished = 60}); }
  ~EventsSection() override { fs::remove_all(folder); }
  std::string page(const std::string& events) const {
    std::ofstream(folder / "events.jsonl") << events;
    return make_page(read_runs({folder}), "now");
  }
};

TEST_F(EventsSection, a_quiet_run_has_none) {
  EXPECT_THAT(page(""), Not(HasSubstr("What happened")));
  EXPECT_THAT(page("{\"time_s\": 1, \"event\": \"start\", \"step\": 0}\n{\"time_s\": 2, \"event\": \"end\", \"step\": 60, \"why\": \"all "
                   "steps\"}\n"),
              Not(HasSubstr("What happened")));
}

TEST_F(EventsSection, troubles_stand_with_what_they_cost_and_last_words) {
  const auto& times = read_run(folder).metrics[Field::time_s];
  const double failed_s = times[19] - 30, hung_s = times[49] - 3;  // back in steps 20 and 50
  const auto text = page(fmt::format(R"({{"time_s": {}, "event": "start", "step": 0, "steps": 60, "ranks": 2}}
{{"time_s": {}, "event": "failure", "step": 20, "rank": 1, "what": "rank 1 <broke>", "last_lines": ["out of <luck>"]}}
{{"time_s": {}, "event": "restart", "attempt": 1, "why": "at once"}}
{{"time_s": {}, "event": "hang", "step": 50, "rank": 0, "silent_s": 2, "what": "rank 0 hangs"}}
{{"time_s": {}, "event": "restart", "attempt": 2, "why": "at once"}}
)",
                                     times[0] - 100, failed_s, failed_s + 1, hung_s, hung_s + 1));
  EXPECT_THAT(text, AllOf(HasSubstr("<h2>What happened</h2>"),
                          HasSubstr("1 failure, 1 hang, 2 restarts. Lost: 35.0 s, of which 5.0 s by hangs. Goodput: "),
                          HasSubstr("rank 1 &lt;broke&gt;"), HasSubstr("out of &lt;luck&gt;"), HasSubstr("number 2, at once"),
                          HasSubstr("<td>30.0 s</td>"), Not(HasSubstr("<broke>"))));
}

TEST_F(EventsSection, goodput_is_the_share_of_kept_steps) {
  const auto run = read_run(folder);
  double kept_s = 0;
  for (const double step_ms : run.metrics[Field::step_ms]) kept_s += step_ms / 1e3;
  const double end_s = run.metrics[Field::time_s].back();
  page(fmt::format("{{\"time_s\": {}, \"event\": \"start\", \"step\": 0}}\n", end_s - 2 * kept_s));
  EXPECT_NEAR(read_run(folder).happened.goodput, 0.5, 1e-6);
  page(fmt::format("{{\"time_s\": {}, \"event\": \"start\", \"step\": 9}}\n", end_s - 2 * kept_s));
  EXPECT_TRUE(std::isnan(read_run(folder).happened.goodput)) << "it began before there were events";
}

TEST_F(EventsSection, broken_lines_are_said_and_many_events_are_cut) {
  std::string many = "nonsense\n";
  for (int i = 0; i < 300; ++i) many += fmt::format("{{\"time_s\": {}, \"event\": \"restart\", \"attempt\": {}, \"why\": \"x\"}}\n", i, i);
  EXPECT_THAT(page(many), AllOf(HasSubstr("1 lines of events.jsonl could not be read"), HasSubstr("The first 100 events are left out"),
                                Not(HasSubstr("number 99,")), HasSubstr("number 100,")));
}

}  // namespace
}  // namespace ingot::report
