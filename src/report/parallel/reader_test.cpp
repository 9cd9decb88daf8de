#include "report/parallel/reader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "report/page/test_mutation.h"
#include "report/parallel/test_parallel.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

nlohmann::ordered_json good() { return nlohmann::ordered_json::parse(schedule::to_json(parallel_sweep(), "modelled", "8 devices")); }

// What the reader says of a file, "" when it takes it.
std::string error_of(std::string_view content) {
  try {
    parse_parallel(content, "a.json");
  } catch (const base::DataError& wrong) {
    return wrong.what();
  }
  return "";
}

template <class Change>
std::string error_after(const Change& change) {
  auto json = good();
  change(json);
  return error_of(json.dump());
}

TEST(ParallelReader, reads_back_what_bench_parallel_writes) {
  const auto sweep = parallel_sweep();
  const auto text = schedule::to_json(sweep, "modelled", "8 devices");
  const auto file = parse_parallel(text, "a.json");
  EXPECT_EQ(file.mode, "modelled");
  EXPECT_EQ(file.machine, "8 devices");
  ASSERT_EQ(file.sweep.results.size(), sweep.results.size());
  ASSERT_EQ(file.sweep.crossovers.size(), 3u);
  EXPECT_EQ(file.sweep.results[0].ops, sweep.results[0].ops) << "kinds without calls are left out again";
  EXPECT_EQ(schedule::to_json(file.sweep, file.mode, file.machine), text);
}

TEST(ParallelReader, every_method_of_the_table_and_the_factorisations_are_known) {
  for (const auto method : schedule::all_methods())
    EXPECT_EQ(error_after([&](auto& json) {
                json["results"][0]["method"] = schedule::name_of(method) == "sp" ? "tp16+sp2" : schedule::name_of(method);
              }),
              "");
}

TEST(ParallelReader, files_from_before_crossovers_had_a_layer_are_read) {
  auto json = good();
  for (auto& crossover : json["crossovers"]) crossover.erase("layer");
  EXPECT_EQ(parse_parallel(json.dump(), "a.json").sweep.crossovers[0].layer, "");
}

TEST(ParallelReader, what_is_no_json_or_no_object_is_said_of_the_file) {
  EXPECT_THAT(error_of(""), AllOf(HasSubstr("a.json"), HasSubstr("not JSON")));
  EXPECT_THAT(error_of("{\"mode\":"), HasSubstr("a.json is not JSON"));
  EXPECT_THAT(error_of("{\"mode\":NaN}"), HasSubstr("a.json is not JSON"));
  EXPECT_THAT(error_of("{\"time_ms\":1e999}"), HasSubstr("a.json is not JSON"));
  EXPECT_THAT(error_of("\xff\x80"), HasSubstr("a.json is not JSON"));
  EXPECT_THAT(error_of("[]"), AllOf(HasSubstr("a.json"), HasSubstr("not an object"), HasSubstr("ingot bench parallel --json -o")));
  EXPECT_THAT(error_of("{}"), HasSubstr("a.json: has no field mode"));
}

TEST(ParallelReader, wrong_types_and_values_name_their_field) {
  using Json = nlohmann::ordered_json;
  const struct {
    const char* field;
    Json value;
    const char* wanted;
  } kCases[] = {{"time_ms", nullptr, "results[3].time_ms is null, not a number"},
                {"time_ms", "1", "results[3].time_ms is \"1\""},
                {"time_ms", -1, "results[3].time_ms is -1"},
                {"exposed_ms", 1e300, "results[3].exposed_ms is 1e+300"},
                {"seq", 8192.5, "results[3].seq is 8192.5, not a whole number"},
                {"seq", 0, "results[3].seq is 0"},
                {"ranks", uint64_t{1} << 63, "results[3].ranks is 9223372036854775808"},
                {"peak_bytes", -1, "results[3].peak_bytes is -1"},
                {"peak_bytes", int64_t{1} << 62, "results[3].peak_bytes"},
                {"fits", 1, "results[3].fits is 1, not true or false"},
                {"method", "ttp", "results[3].method: unknown method 'ttp'"},
                {"method", "tp2", "results[3].method: unknown method 'tp2'"},
                {"method", "<b>", "results[3].method: unknown method"},
                {"method", 5, "results[3].method is 5, not a text"},
                {"layer", "blocks", "results[3].layer: unknown layer 'blocks'"},
                {"pass", "", "results[3].pass: unknown pass"},
                {"ops", Json::array(), "results[3].ops is a list, not an object"},
                {"ops", {{"shout", Json::object()}}, "results[3].ops.shout is no kind of operation"},
                {"ops", {{"reduce", {{"calls", 1}}}}, "results[3].ops.reduce has no field sent_bytes"}};
  for (const auto& one : kCases) {
    const auto error = error_after([&](auto& json) { json["results"][3][one.field] = one.value; });
    EXPECT_THAT(error, AllOf(HasSubstr("a.json"), HasSubstr(one.wanted)));
  }
  EXPECT_THAT(error_after([](auto& json) { json["results"] = "none"; }), HasSubstr("a.json: results is \"none\", not a list"));
  EXPECT_THAT(error_after([](auto& json) { json["results"][1] = 7; }), HasSubstr("a.json: results[1] is 7, not an object"));
  EXPECT_THAT(error_after([](auto& json) { json["results"][2].erase("fits"); }), HasSubstr("results[2] has no field fits"));
  EXPECT_THAT(error_after([](auto& json) { json["mode"] = "guessed"; }), HasSubstr("mode is \"guessed\", not measured or modelled"));
  EXPECT_THAT(error_after([](auto& json) { json["crossovers"][1]["quantity"] = "cost"; }), HasSubstr("crossovers[1].quantity is \"cost\""));
  EXPECT_THAT(error_after([](auto& json) { json["refused"][0]["seq"] = "8K"; }), HasSubstr("refused[0].seq is \"8K\""));
}

TEST(ParallelReader, no_results_twice_the_same_and_too_many_are_refused) {
  EXPECT_THAT(error_after([](auto& json) { json["results"].clear(); }),
              AllOf(HasSubstr("a.json: results is empty"), HasSubstr("heads = 6 is not a multiple of 4")));
  EXPECT_THAT(error_after([](auto& json) { json["results"].push_back(json["results"][0]); }),
              HasSubstr("results[16] says a second time how tp"));
  EXPECT_THAT(error_after([](auto& json) {
                for (int seq = 1; seq <= 200; ++seq) {
                  json["results"].push_back(json["results"][0]);
                  json["results"].back()["seq"] = seq;
                }
              }),
              HasSubstr("203 lengths; a page shows at most 100"));
  EXPECT_THAT(error_after([](auto& json) { json["crossovers"] = std::vector<int>(20'001); }),
              HasSubstr("a.json: crossovers has 20001 entries; a page shows at most 20000"));
}

TEST(ParallelReader, deep_nesting_does_not_exhaust_the_stack) {
  constexpr size_t kDepth = 2'000'000;
  EXPECT_THAT(error_of(std::string(kDepth, '[') + std::string(kDepth, ']')), HasSubstr("is a list, not an object"));
  EXPECT_THAT(error_of("{\"mode\":" + std::string(kDepth, '[') + std::string(kDepth, ']') + "}"), HasSubstr("mode is a list, not a text"));
}

TEST(ParallelReader, files_that_are_too_large_are_not_read) {
  const auto path = fs::temp_directory_path() / fmt::format("ingot_parallel_{}.json", ::getpid());
  std::ofstream(path) << "{";
  fs::resize_file(path, uintmax_t{1} << 33);
  std::string error;
  try {
    read_parallel(path);
  } catch (const base::DataError& wrong) {
    error = wrong.what();
  }
  fs::remove(path);
  EXPECT_THAT(error, AllOf(HasSubstr(path.string()), HasSubstr("8.00 GiB"), HasSubstr("24.0 MiB")));
  EXPECT_THROW(read_parallel(path), base::FileError) << "there is no such file any more";
}

TEST(ParallelReader, mutated_files_are_read_or_refused) {
  const auto text = schedule::to_json(parallel_sweep(), "measured", "here");
  int taken = 0;
  for (uint64_t key = 0; key < 3000; ++key) {
    try {
      parse_parallel(mutated_lines(text, key), "a.json");
      ++taken;
    } catch (const base::DataError& wrong) {
      ASSERT_THAT(wrong.what(), HasSubstr("a.json"));
    }
  }
  EXPECT_LT(taken, 3000);
}

}  // namespace
}  // namespace ingot::report
