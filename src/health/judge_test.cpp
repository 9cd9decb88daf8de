#include "health/judge.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "base/files.h"

namespace ingot::health {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Judges : public ::testing::Test {
 protected:
  Judges() { fs::create_directories(folder_); }
  ~Judges() override { fs::remove_all(folder_); }

  static plan::MachineProfile machine() {
    plan::MachineProfile p;
    p.host = "node7", p.cpu = "some CPU", p.device = "cpu", p.date = "2026-01-02T03:04:05Z", p.cores = p.threads = 2;
    p.torch = "2.11.0", p.program = "stamp", p.commands = {"by hand"};
    return p;
  }
  std::string written(const plan::MachineProfile& profile) const {
    const auto file = (folder_ / "earlier.json").string();
    base::write_file_atomically(file, profile.to_json());
    return file;
  }
  template <class Error, class Call>
  static std::string refusal(const Call& call) {
    try {
      call();
    } catch (const Error& refused) {
      return refused.what();
    }
    return "";
  }

  fs::path folder_ = fs::temp_directory_path() / fmt::format("ingot_judge_{}", ::getpid());
};

TEST_F(Judges, two_things_to_judge_by_are_refused) {
  EXPECT_THAT(refusal<base::UsageError>([] { judge_of({.baseline = "a", .floors = "b"}, machine(), ""); }), HasSubstr("give one"));
}

TEST_F(Judges, without_floors_and_profile_the_next_step_is_said) {
  EXPECT_THAT(refusal<base::ConfigError>([] { judge_of({}, machine(), ""); }), AllOf(HasSubstr("some CPU"), HasSubstr("ingot bench all")));
}

TEST_F(Judges, floors_of_another_device_are_refused) {
  const auto shipped = shipped_floor_files();
  ASSERT_FALSE(shipped.empty());
  const auto file = (folder_ / "floors.json").string();
  base::write_file_atomically(file, shipped.front());
  EXPECT_THAT(refusal<base::ConfigError>([&] { judge_of({.floors = file}, machine(), ""); }),
              AllOf(HasSubstr("some CPU"), HasSubstr("--device-name")));
}

TEST_F(Judges, an_earlier_profile_of_other_threads_is_not_compared_with) {
  auto earlier = machine();
  earlier.threads = 64;
  const auto judge = judge_of({.baseline = written(earlier)}, machine(), "");
  EXPECT_THAT(judge.against, HasSubstr("node7"));
  EXPECT_THAT(refusal<base::ConfigError>([&] { judge.judge(machine(), {}); }), AllOf(HasSubstr("64 threads"), HasSubstr("like with like")));
}

TEST_F(Judges, the_cached_profile_is_the_last_resort) {
  const auto judge = judge_of({}, machine(), written(machine()));
  EXPECT_TRUE(judge.before.has_value());
  EXPECT_FALSE(judge.floors.has_value());
}

TEST_F(Judges, a_hosts_name_cannot_leave_the_folder) {
  auto p = machine();
  p.host = "../../etc/x y";
  const auto judge = judge_of({.baseline = written(machine())}, machine(), "");
  write_check(folder_ / "checks", judge.judge(p, {}));
  EXPECT_TRUE(fs::exists(folder_ / "checks" / "_.._.._etc_x_y.json"));
}

}  // namespace
}  // namespace ingot::health
