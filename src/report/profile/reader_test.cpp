#include "report/profile/reader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "report/page/test_html.h"
#include "report/page/test_mutation.h"
#include "report/profile/page.h"
#include "report/profile/test_profile.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json collectives() {
  const auto timing = [](double mean) {
    return Json{{"mean_s", mean}, {"min_s", 1e-6}, {"p50_s", 1e-6}, {"p99_s", 1e-6}, {"max_s", 1e-6}, {"wrong", 0}};
  };
  Json results = Json::array();
  for (const int64_t bytes : {1024, 4096})
    results.push_back({{"operation", "all_gather"},
                       {"dtype", "bf16"},
                       {"placement", "strided"},
                       {"ranks", 4},
                       {"groups", 2},
                       {"root", -1},
                       {"bytes", bytes},
                       {"count", 1},
                       {"bus_factor", 0.75},
                       {"out_of_place", timing(3e-5)},
                       {"in_place", timing(2e-5)}});
  return {{"results", results}, {"curves", Json::array()}, {"description", "8 ranks"}, {"backend", "shared_memory"}};
}

std::string error_of(const std::string& text, bool is_profile) {
  try {
    is_profile ? parse_profile(text, "x.json") : parse_collectives(text, "x.json");
  } catch (const base::Error& error) {
    return error.what();
  }
  return "";
}

TEST(ProfileReader, collectives_give_the_time_in_place_where_there_is_one) {
  auto json = collectives();
  json["results"][1]["in_place"] = nullptr;
  const auto machine = parse_collectives(json.dump(), "x.json");
  ASSERT_EQ(machine.profile.collectives.size(), 2u);
  EXPECT_EQ(machine.profile.collectives[0].seconds, 2e-5);
  EXPECT_EQ(machine.profile.collectives[1].seconds, 3e-5);
  EXPECT_EQ(machine.profile.collectives[0].groups, 2);
  EXPECT_FALSE(machine.has_profile);
}

TEST(ProfileReader, what_is_wrong_is_named) {
  const auto changed = [](const auto& change) {
    auto json = collectives();
    change(json);
    return error_of(json.dump(), false);
  };
  EXPECT_THAT(changed([](Json& j) { j["results"][1]["operation"] = "<b>"; }), HasSubstr("x.json.results[1].operation must be one of"));
  EXPECT_THAT(changed([](Json& j) { j["results"][1]["bytes"] = -1; }), HasSubstr("bytes"));
  EXPECT_THAT(changed([](Json& j) { j["results"][0]["in_place"]["mean_s"] = -1; }), HasSubstr("mean_s"));
  EXPECT_THAT(changed([](Json& j) { j["results"][0]["in_place"] = j["results"][0]["out_of_place"] = nullptr; }), HasSubstr("both null"));
  EXPECT_THAT(changed([](Json& j) { j["results"] = Json::array(); }), HasSubstr("results must be a list of 1"));
  EXPECT_THAT(changed([](Json& j) { j.erase("description"); }), HasSubstr("lacks 'description'"));
  EXPECT_THAT(error_of("{", false), HasSubstr("is not JSON"));
  auto profile = Json::parse(profile_of_formulas().to_json());
  profile["version"] = 99;
  EXPECT_THAT(error_of(profile.dump(), true), HasSubstr("version 99"));
  auto many = profile_of_formulas();
  many.memory.resize(6000, many.memory[0]);
  EXPECT_THAT(error_of(many.to_json(), true), HasSubstr("memory has 6000 entries"));
}

class ProfileFiles : public ::testing::Test {
 protected:
  fs::path folder = fs::temp_directory_path() / fmt::format("ingot_profile_reader_{}", ::getpid());
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }
  fs::path write(const char* name, const std::string& text) {
    std::ofstream(folder / name) << text;
    return folder / name;
  }
};

TEST_F(ProfileFiles, are_known_by_their_members_and_put_together_in_order) {
  const auto a = write("a.json", profile_of_formulas().to_json()), b = write("b.json", profile_of_formulas().to_json()),
             c = write("c.json", collectives().dump());
  EXPECT_EQ(kind_of_file(a), FileKind::profile);
  EXPECT_EQ(kind_of_file(c), FileKind::collectives);
  EXPECT_EQ(kind_of_file(write("d.json", R"({"mode":"measured","results":[]})")), FileKind::other);
  EXPECT_EQ(kind_of_file(write("e.json", "[1")), FileKind::other);
  const auto machines = read_measured({c, a, b});
  ASSERT_EQ(machines.size(), 2u);
  EXPECT_EQ(machines[0].name, "a.json + c.json");
  EXPECT_EQ(machines[0].profile.collectives.size(), machines[1].profile.collectives.size() + 2);
  EXPECT_EQ(read_measured({c, c}).size(), 2u);
  EXPECT_THROW(read_measured({a, b, c, c, c}), base::UsageError);
}

TEST_F(ProfileFiles, a_time_that_no_clock_can_tell_is_refused) {
  auto p = profile_of_formulas();
  p.kernels[1].forward_s = 1e-300;
  const auto path = write("a.json", p.to_json());
  try {
    read_measured({path});
    FAIL();
  } catch (const base::DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("kernels[1]"));
  }
}

TEST(ProfileReader, damaged_files_are_refused_or_give_a_sound_page) {
  const auto text = profile_of_formulas().to_json(), other = collectives().dump(1);
  for (uint64_t key = 0; key < 300; ++key) {
    const bool is_profile = key % 2 == 0;
    try {
      const auto damaged = mutated_lines(is_profile ? text : other, key);
      const auto page = make_profile_page({is_profile ? parse_profile(damaged, "x") : parse_collectives(damaged, "x")}, "now");
      ASSERT_EQ(count(page, "<script"), count(page, "<figure") + 2) << key;
    } catch (const base::Error&) {
    }
  }
}

}  // namespace
}  // namespace ingot::report
