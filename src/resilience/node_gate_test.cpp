#include "resilience/node_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "base/error.h"
#include "base/files.h"

namespace ingot::resilience {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

class NodeGates : public testing::Test {
 protected:
  void SetUp() override { fs::remove(list_); }
  void TearDown() override { fs::remove(list_); }
  NodeGate gate(const std::string& script, double limit_s = 30) const {
    return NodeGate({.node = "node7", .list = list_, .check = {"sh", "-c", script}, .limit_s = limit_s});
  }
  const fs::path list_ = fs::temp_directory_path() / ("ingot-gate-" + std::to_string(::getpid()));
};

TEST_F(NodeGates, let_a_node_in_that_is_fit_and_not_on_the_list) {
  EXPECT_EQ(gate("true").reason_to_stay_away(), "");
  EXPECT_EQ(NodeGate({.node = "node7", .list = {}, .check = {}}).reason_to_stay_away(), "");
  gate("true").exclude("core 3 computes wrongly");
  EXPECT_THAT(gate("true").reason_to_stay_away(), StartsWith(list_.string() + " has node7 among"));
  EXPECT_EQ(NodeGate({.node = "node71", .list = list_, .check = {}}).reason_to_stay_away(), "");
}

TEST_F(NodeGates, say_at_once_that_the_list_cannot_be_written) {
  EXPECT_THROW(NodeGate({.node = "node7", .list = "/proc/version/excluded", .check = {}}).reason_to_stay_away(), base::FileError);
}

TEST_F(NodeGates, say_what_the_check_found) {
  EXPECT_EQ(gate(R"(echo '{"reasons": ["core 3 computes wrongly", "no memory"]}'; exit 3)").reason_to_stay_away(),
            "core 3 computes wrongly; no memory");
  EXPECT_THAT(gate("echo nonsense; exit 1").reason_to_stay_away(), HasSubstr("exited with status 1"));
  EXPECT_THAT(gate("kill -SEGV $$").reason_to_stay_away(), HasSubstr("was ended by signal 11"));
}

TEST_F(NodeGates, do_not_wait_for_a_check_that_hangs) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(gate("sleep 60", 0.2).reason_to_stay_away(), HasSubstr("has not ended within 0.2 s"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST_F(NodeGates, ask_after_failures_that_a_node_may_be_the_cause_of) {
  const auto broken = gate(R"(echo '{"reasons": ["bad"]}'; exit 3)");
  for (const auto cause : {Cause::crash, Cause::hang}) EXPECT_EQ(broken.reason_to_go(cause, "last"), "bad");
  for (const auto cause : {Cause::killed, Cause::usage, Cause::stopped, Cause::elsewhere})
    EXPECT_EQ(broken.reason_to_go(cause, "last"), "");
  EXPECT_EQ(gate("true").reason_to_go(Cause::unfit, "12:34:56 E 3 of 65536 numbers are wrong"), "3 of 65536 numbers are wrong");
}

}  // namespace
}  // namespace ingot::resilience
