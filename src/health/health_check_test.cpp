#include "health/health_check.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace ingot::health {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using Status = Check::Status;

plan::MachineProfile h100() {
  plan::MachineProfile p;
  p.gemm = {{"bf16", "plain", "forward", 2048, 2048, 2048, 900e12},
            {"bf16", "plain", "forward", 8192, 8192, 8192, 700e12},
            {"fp32", "plain", "forward", 8192, 8192, 8192, 50e12}};
  p.memory = {{"triad", 1 << 20, 9e12}, {"triad", 1 << 28, 2.9e12}, {"copy", 1 << 29, 5e12}};
  p.collectives = {{"all_reduce", "bf16", "neighbours", 8, 1, int64_t{1} << 30, 1.75 * (1 << 30) / 400e9},
                   {"all_reduce", "bf16", "neighbours", 8, 1, 1 << 20, 1e-9},
                   {"all_reduce", "bf16", "neighbours", 2, 4, int64_t{1} << 30, 1e-9}};
  return p;
}

std::vector<Status> statuses(const std::vector<Check>& checks) {
  std::vector<Status> out;
  for (const auto& check : checks) out.push_back(check.status());
  return out;
}

TEST(Floors, every_shipped_file_can_be_read_and_says_where_its_numbers_are_from) {
  std::set<std::string> names;
  for (const auto& text : shipped_floor_files()) {
    const auto file = parse_floors(text, "shipped");
    names.insert(file.name);
    for (const auto& floor : file.floors) {
      EXPECT_GT(floor.source.size(), 10u);
      EXPECT_GE(floor.fraction, 0.5);
    }
    EXPECT_TRUE(std::any_of(file.floors.begin(), file.floors.end(), [](const auto& f) { return f.name() == "bf16 GEMM"; })) << file.name;
  }
  EXPECT_THAT(names, ElementsAre("AMD Instinct MI300X", "NVIDIA H100 SXM", "NVIDIA H200 SXM"));
}

TEST(Floors, are_chosen_by_the_devices_name) {
  EXPECT_EQ(shipped_floors("NVIDIA H100 80GB HBM3")->name, "NVIDIA H100 SXM");
  EXPECT_EQ(shipped_floors("nvidia h200")->name, "NVIDIA H200 SXM");
  EXPECT_EQ(shipped_floors("AMD Instinct MI300X OAM")->name, "AMD Instinct MI300X");
  EXPECT_FALSE(shipped_floors("AMD EPYC 9654"));
  EXPECT_FALSE(shipped_floors(""));
}

TEST(Floors, what_is_wrong_is_named) {
  const auto changed = [](const auto& change) -> std::string {
    auto json = Json::parse(shipped_floor_files().front());
    change(json);
    try {
      parse_floors(json.dump(), "f.json");
    } catch (const base::ProfileError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(changed([](Json&) {}), "");
  EXPECT_THAT(changed([](Json& j) { j["checks"][0]["fraction"] = 1.5; }), HasSubstr("f.json.checks[0].fraction must be at most 1"));
  EXPECT_THAT(changed([](Json& j) { j["checks"][0]["published"] = -1; }), HasSubstr("published"));
  EXPECT_THAT(changed([](Json& j) { j["checks"][0].erase("source"); }), HasSubstr("lacks 'source'"));
  EXPECT_THAT(changed([](Json& j) { j["checks"][0]["sauce"] = 1; }), HasSubstr("sauce"));
  EXPECT_THAT(changed([](Json& j) { j["version"] = 2; }), HasSubstr("version 2"));
  EXPECT_THROW(parse_floors("{", "f.json"), base::ProfileError);
}

TEST(HealthCheck, only_measurements_that_are_large_enough_count) {
  const auto floors = *shipped_floors("H100");
  auto profile = h100();
  const auto checks = checks_of(floors, profile, {.host_to_device = 50e9, .device_to_host = {}});
  ASSERT_EQ(checks.size(), 5u);
  EXPECT_DOUBLE_EQ(*checks[0].value, 700e12) << "not the small GEMM, which is faster";
  EXPECT_DOUBLE_EQ(checks[0].floor, 794e12 * 0.85);
  EXPECT_DOUBLE_EQ(*checks[1].value, 2.9e12) << "not the cache, not copy";
  EXPECT_NEAR(*checks[2].value, 400e9, 1) << "not groups of two, not small messages";
  EXPECT_DOUBLE_EQ(*checks[3].value, 50e9);
  EXPECT_THAT(statuses(checks), ElementsAre(Status::pass, Status::pass, Status::pass, Status::pass, Status::not_measured));
  profile.gemm[1].flops_per_s = 600e12;
  EXPECT_THAT(statuses(checks_of(floors, profile, {})),
              ElementsAre(Status::fail, Status::pass, Status::pass, Status::not_measured, Status::not_measured));
}

TEST(HealthCheck, a_value_at_its_floor_passes_and_nothing_measured_does_not) {
  EXPECT_EQ((Check{"a", 1.0, 1.0, "", ""}).status(), Status::pass);
  EXPECT_EQ((Check{"a", 0.999, 1.0, "", ""}).status(), Status::fail);
  EXPECT_EQ((Check{"a", NAN, 1.0, "", ""}).status(), Status::fail);
  HealthCheck v{.host = "n", .device = "d", .date = "", .against = "floors", .checks = {{"a", 2.0, 1.0, "", ""}, {"b", {}, 1.0, "", ""}}};
  EXPECT_TRUE(v.passes());
  EXPECT_THAT(v.summary(), HasSubstr("n passes: 1 of 2 checks against floors; not measured: b"));
  v.checks[0].value = 0.5;
  EXPECT_FALSE(v.passes());
  EXPECT_THAT(v.summary(), HasSubstr("n FAILS: 0 of 2 checks against floors; a 50 % of its floor"));
  v.checks.erase(v.checks.begin());
  EXPECT_FALSE(v.passes()) << "nothing was measured";
  v.checks.clear();
  EXPECT_FALSE(v.passes());
}

TEST(HealthCheck, an_earlier_profile_allows_the_tolerance_and_no_more) {
  const auto before = h100();
  auto now = before;
  for (const auto& check : checks_of(before, now, 0.1, "s")) EXPECT_EQ(check.status(), Status::pass) << check.name;
  for (auto& e : now.gemm) e.flops_per_s *= 0.91;
  now.memory[1].bytes_per_s *= 0.89;
  std::set<std::string> failed;
  for (const auto& check : checks_of(before, now, 0.1, "s"))
    if (check.status() == Status::fail) failed.insert(check.name);
  EXPECT_THAT(failed, ElementsAre("triad")) << "the median of memory has two sizes as they were";
  for (auto& e : now.collectives) e.seconds *= 1.5;
  const auto checks = checks_of(before, now, 0.1, "s");
  const auto median = std::find_if(checks.begin(), checks.end(), [](const auto& c) { return c.name == "bf16 collectives, median"; });
  ASSERT_NE(median, checks.end());
  EXPECT_DOUBLE_EQ(*median->value, 1 / 1.5);
  EXPECT_EQ(median->status(), Status::fail);
  now.gemm.clear();
  EXPECT_EQ(checks_of(before, now, 0.1, "s")[0].status(), Status::not_measured);
}

TEST(HealthCheck, comes_back_from_its_json_and_must_say_what_its_checks_say) {
  const HealthCheck v{.host = "n<1>",
                      .device = "d",
                      .date = "2026-01-02T03:04:05Z",
                      .against = "a",
                      .checks = {{"x", 2.0, 1.5, "B/s", "s"}, {"y", {}, 1, "", "t"}}};
  const auto text = v.to_json().dump();
  const auto again = HealthCheck::from_json(text, "v.json");
  EXPECT_EQ(again.to_json(), v.to_json());
  EXPECT_TRUE(again.passes());
  const auto changed = [&](const auto& change) -> std::string {
    auto json = Json::parse(text);
    change(json);
    try {
      HealthCheck::from_json(json.dump(), "v.json");
    } catch (const base::ProfileError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(changed([](Json& j) { j["checks"][0]["value"] = 1.0; }), HasSubstr("v.json.pass is not what its checks say"));
  EXPECT_THAT(changed([](Json& j) { j["checks"][0]["value"] = "2"; }), HasSubstr("value"));
  EXPECT_THAT(changed([](Json& j) { j["checks"][0]["floor"] = 0; }), HasSubstr("floor"));
  EXPECT_THAT(changed([](Json& j) { j.erase("host"); }), HasSubstr("lacks 'host'"));
  EXPECT_THAT(changed([](Json& j) { j["extra"] = 1; }), HasSubstr("extra"));
  EXPECT_THROW(HealthCheck::from_json("", "v.json"), base::ProfileError);
  EXPECT_THROW(HealthCheck::from_json("[]", "v.json"), base::ProfileError);
}

TEST(AcceleratorName, is_what_the_driver_says) {
  const auto root = fs::temp_directory_path() / fmt::format("ingot_accelerator_{}", ::getpid());
  EXPECT_EQ(accelerator_name(root.string()), "");
  fs::create_directories(root / "sys/class/drm/card1/device");
  std::ofstream(root / "sys/class/drm/card1/device/product_name") << "AMD Instinct MI300X OAM\n";
  EXPECT_EQ(accelerator_name(root.string()), "AMD Instinct MI300X OAM");
  fs::create_directories(root / "proc/driver/nvidia/gpus/0000:01:00.0");
  std::ofstream(root / "proc/driver/nvidia/gpus/0000:01:00.0/information") << "Bus: 1\nModel: \t NVIDIA H100 80GB HBM3\nIRQ: 3\n";
  EXPECT_EQ(accelerator_name(root.string()), "NVIDIA H100 80GB HBM3");
  fs::remove_all(root);
}

}  // namespace
}  // namespace ingot::health
