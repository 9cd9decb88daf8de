#include "health/cluster_summary.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ingot::health {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using State = SummaryNode::State;

constexpr double kNow_s = 1'767'323'045;  // 2026-01-02T03:04:05Z

HealthCheck verdict_of(const std::string& host, double rate, const std::string& date = "2026-01-02T02:04:05Z") {
  return {.host = host, .device = "GPU", .date = date, .against = "floors", .checks = {{"gemm", rate, 100, "FLOP/s", "s"}}};
}
HealthCheckFile file_of(const HealthCheck& v) { return {v.host, v.to_json().dump()}; }

const SummaryNode& node_of(const ClusterSummary& fleet, const std::string& host) {
  for (const auto& node : fleet.nodes)
    if (node.host == host) return node;
  throw std::runtime_error("no " + host);
}

TEST(ClusterSummary, dates_are_utc) {
  EXPECT_EQ(*seconds_of_date("2026-01-02T03:04:05Z"), kNow_s);
  for (const char* bad : {"", "yesterday", "2026-01-02", "2026-01-02T03:04:05Zx"}) EXPECT_FALSE(seconds_of_date(bad)) << bad;
}

TEST(ClusterSummary, every_expected_node_is_accounted_for) {
  const auto fleet = gathered({file_of(verdict_of("n1", 150)),
                               file_of(verdict_of("n2", 50)),
                               {"n3", "{\"format\":"},
                               file_of(verdict_of("n4", 150, "2026-01-01T02:04:05Z")),
                               file_of(verdict_of("n9", 150))},
                              {.expected = {"n1", "n2", "n3", "n4", "n5"}, .now_s = kNow_s});
  EXPECT_EQ(node_of(fleet, "n1").state, State::pass);
  EXPECT_EQ(node_of(fleet, "n2").state, State::fail);
  EXPECT_THAT(node_of(fleet, "n2").reason, HasSubstr("50 % of its floor"));
  EXPECT_EQ(node_of(fleet, "n3").state, State::broken);
  EXPECT_EQ(node_of(fleet, "n4").state, State::stale);
  EXPECT_THAT(node_of(fleet, "n4").reason, HasSubstr("1 d 01 h old"));
  EXPECT_EQ(node_of(fleet, "n5").state, State::missing);
  EXPECT_EQ(node_of(fleet, "n9").state, State::unexpected);
  EXPECT_THAT(fleet.passing(), ElementsAre("n1"));
  EXPECT_THAT(fleet.failing(), ElementsAre("n2", "n3", "n4", "n5"));
  EXPECT_FALSE(fleet.passes());
  EXPECT_THAT(fleet.table(), HasSubstr("1 node pass, 4 fail: n[2-5]"));
  EXPECT_EQ(fleet.to_json()["exclude"], "n[2-5]");
  EXPECT_EQ(fleet.to_json()["nodes"].size(), 6u);
}

TEST(ClusterSummary, one_that_lags_behind_the_others_fails_although_it_passes_its_floors) {
  std::vector<HealthCheckFile> files;
  for (int i = 1; i <= 5; ++i) files.push_back(file_of(verdict_of(fmt::format("n{}", i), i == 4 ? 170 : 198 + i)));
  const auto fleet = gathered(files, {.expected = {}, .now_s = kNow_s});
  EXPECT_EQ(node_of(fleet, "n4").state, State::outlier);
  EXPECT_THAT(node_of(fleet, "n4").reason, HasSubstr("15 % below the median of 5 nodes (20.2 robust deviations)"));
  EXPECT_THAT(fleet.passing(), ElementsAre("n1", "n2", "n3", "n5"));
  ASSERT_EQ(fleet.checks.size(), 1u);
  EXPECT_EQ(fleet.checks[0].median, 200);
  EXPECT_EQ(fleet.checks[0].least, 170);
  EXPECT_NEAR(fleet.checks[0].deviation, 1.4826, 1e-9) << "distances 1, 0, 1, 30, 3";
  EXPECT_TRUE(gathered(files, {.expected = {}, .now_s = kNow_s, .outlier_share = 0.2}).passes());
  EXPECT_TRUE(gathered(files, {.expected = {}, .now_s = kNow_s, .outlier_share = 0}).passes());
}

TEST(ClusterSummary, devices_are_compared_with_their_own_kind_and_two_nodes_with_nobody) {
  auto other = verdict_of("m1", 900);
  other.device = "another GPU";
  const auto mixed =
      gathered({file_of(verdict_of("n1", 200)), file_of(verdict_of("n2", 200)), file_of(verdict_of("n3", 200)), file_of(other)},
               {.expected = {}, .now_s = kNow_s});
  EXPECT_TRUE(mixed.passes());
  EXPECT_EQ(mixed.checks.size(), 2u);
  EXPECT_TRUE(gathered({file_of(verdict_of("n1", 200)), file_of(verdict_of("n2", 110))}, {.expected = {}, .now_s = kNow_s}).passes());
}

TEST(ClusterSummary, verdicts_that_cannot_be_trusted_do_not_count) {
  auto renamed = file_of(verdict_of("n1", 150));
  renamed.name = "n2";
  const auto fleet = gathered({renamed, file_of(verdict_of("n3", 150, "2026-01-02T04:04:05Z")), file_of(verdict_of("n4", 150, "soon"))},
                              {.expected = {}, .now_s = kNow_s});
  EXPECT_EQ(node_of(fleet, "n2").state, State::broken);
  EXPECT_THAT(node_of(fleet, "n2").reason, HasSubstr("is of host n1"));
  EXPECT_THAT(node_of(fleet, "n3").reason, HasSubstr("future"));
  EXPECT_EQ(node_of(fleet, "n4").state, State::broken);
  EXPECT_TRUE(fleet.passing().empty());
  EXPECT_FALSE(gathered({}, {.expected = {}, .now_s = kNow_s}).passes());
}

TEST(ClusterSummary, full_and_short_names_are_the_same_node) {
  const auto fleet =
      gathered({file_of(verdict_of("n1.cluster.local", 150)), file_of(verdict_of("n2", 150)), file_of(verdict_of("n2.cluster.local", 150))},
               {.expected = {"n1", "n2"}, .now_s = kNow_s});
  EXPECT_THAT(fleet.passing(), ElementsAre("n1"));
  EXPECT_THAT(fleet.failing(), ElementsAre("n2")) << "which of its two verdicts holds, nobody knows";
}

}  // namespace
}  // namespace ingot::health
