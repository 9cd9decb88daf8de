#include "report/run/run_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "base/random.h"
#include "report/run/fake_run.h"
#include "report/run/page.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class RunDataTest : public ::testing::Test {
 protected:
  fs::path folder = fs::temp_directory_path() / ("ingot_run_data_" + std::to_string(::getpid()));
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }
  void write(const std::string& name, std::string_view text) {
    fs::create_directories((folder / name).parent_path());
    std::ofstream(folder / name, std::ios::binary) << text;
  }
};

TEST_F(RunDataTest, a_run_directory_is_read_as_it_was_written) {
  write_fake_run(folder / "nano", {.steps = 200, .finished = 150, .moe_layers = 2, .resumed_after = {70}, .nonfinite = {90}});
  const auto run = read_run(folder / "nano/");
  EXPECT_EQ(run.name, "nano");
  EXPECT_THAT(run.remarks, IsEmpty());
  EXPECT_THAT(run.settings, Contains(Pair("model.family", "zaya1")));
  EXPECT_THAT(run.settings, Contains(Pair("optimizer.lr", "0.003")));
  EXPECT_EQ(run.parameters, 12345678);
  EXPECT_THAT(run.mfu_convention, HasSubstr("recompute not counted"));
  EXPECT_EQ(run.metrics.step.size(), 150u);
  EXPECT_EQ(run.metrics.restarts.size(), 1u);
  EXPECT_EQ(run.metrics.lines.nonfinite, 1);
  EXPECT_EQ(run.log_warning_count, 1);
}

TEST_F(RunDataTest, missing_empty_and_broken_files_become_remarks) {
  EXPECT_THAT(read_run(folder).remarks, Contains(HasSubstr("metrics.jsonl is missing")));
  write("metrics.jsonl", "");
  write("config.toml", "[model\nbroken");
  write("run.json", "[1]");
  write("profile.json", "{\"gemm\":{\"fp32\":{\"tflops\":0.2}},\"sizes\":[1,2]}");
  fs::create_directories(folder / "log.txt");
  const auto run = read_run(folder);
  EXPECT_THAT(run.remarks, Contains(HasSubstr("no usable line")));
  EXPECT_THAT(run.remarks, Contains(HasSubstr("config.toml cannot be read: line 1")));
  EXPECT_THAT(run.remarks, Contains("run.json is not a JSON object"));
  EXPECT_THAT(run.remarks, Contains(HasSubstr("log.txt is not a regular file")));
  EXPECT_THAT(run.profile, Contains(Pair("gemm.fp32.tflops", "0.2")));
  EXPECT_THAT(make_page({run}, "now"), HasSubstr("There is nothing to plot yet"));
}

TEST_F(RunDataTest, checkpoints_are_read_and_their_broken_lines_become_remarks) {
  write_fake_run(folder / "run", {.steps = 40, .finished = 40, .resumed_after = {20}, .save_every = 10, .failed_saves = {20}});
  auto run = read_run(folder / "run");
  EXPECT_THAT(run.remarks, IsEmpty());
  EXPECT_EQ(run.checkpoints.folder.saves, 4);
  EXPECT_EQ(run.checkpoints.folder.failed, 1);
  EXPECT_EQ(run.checkpoints.load_count, 1);
  std::ofstream(folder / "run" / "checkpoints.jsonl", std::ios::app) << "{\"kind\":\"save\",\"step\":50,\"total_s\":-1}\n{\"kind\":\"sa";
  run = read_run(folder / "run");
  EXPECT_THAT(run.remarks, Contains("1 of 7 lines of checkpoints.jsonl could not be read and were left out"));
  EXPECT_THAT(run.remarks, Contains(HasSubstr("1 of 7 lines of checkpoints.jsonl lack values")));
  EXPECT_EQ(run.checkpoints.folder.saves, 5);
  write("run/checkpoints.jsonl", "");
  EXPECT_THAT(read_run(folder / "run").remarks, IsEmpty());
  fs::remove(folder / "run" / "checkpoints.jsonl");
  fs::create_directories(folder / "run" / "checkpoints.jsonl");
  EXPECT_THAT(read_run(folder / "run").remarks, Contains(HasSubstr("checkpoints.jsonl is not a regular file")));
}

TEST_F(RunDataTest, a_folder_that_is_none_is_an_error_with_the_next_step) {
  write("file", "x");
  for (const char* name : {"none", "file"}) {
    try {
      read_run(folder / name);
      FAIL() << name;
    } catch (const base::DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr((folder / name).string()));
      EXPECT_THAT(error.what(), HasSubstr("--run-dir"));
    }
  }
}

TEST_F(RunDataTest, runs_of_equal_names_are_told_apart) {
  for (const char* name : {"a/run", "b/run", "c/x/run", "d/x/run", "other"}) fs::create_directories(folder / name);
  const auto runs = read_runs({folder / "a/run", folder / "b/run", folder / "c/x/run", folder / "d/x/run", folder / "other"});
  std::vector<std::string> names;
  for (const auto& run : runs) names.push_back(run.name);
  EXPECT_THAT(names, ::testing::ElementsAre("a/run", "b/run", "x/run #1", "x/run #2", "other"));
}

TEST_F(RunDataTest, mutated_run_directories_always_give_a_page) {
  write_fake_run(folder, {.steps = 40,
                          .finished = 40,
                          .moe_layers = 2,
                          .validate_every = 10,
                          .resumed_after = {20},
                          .save_every = 8,
                          .memory_every = 4,
                          .ranks = 3,
                          .failed_saves = {16}});
  const std::vector<std::string> names = {"metrics.jsonl", "config.toml", "run.json", "log.txt", "checkpoints.jsonl"};
  std::vector<std::string> originals;
  for (const auto& name : names) originals.push_back(base::read_file(folder / name));
  static constexpr std::string_view kSpice = "{}[]\"'=,:\n\\-+.eE0192#<>&\xff\x80 ";
  for (uint64_t trial = 0; trial < 300; ++trial) {
    const uint64_t key = base::stream_key(trial, "mutated run");
    for (size_t file = 0; file < names.size(); ++file) {
      std::string mutated = originals[file];
      for (uint64_t i = 0; i < 20 && !mutated.empty(); ++i) {
        const uint64_t draw = 100 * file + 3 * i;
        const auto place = static_cast<size_t>(base::uniform_at(key, draw) * static_cast<double>(mutated.size()));
        const auto spice = kSpice[static_cast<size_t>(base::uniform_at(key, draw + 1) * static_cast<double>(kSpice.size()))];
        const double kind = base::uniform_at(key, draw + 2);
        if (kind < 0.5) mutated[place] = spice;
        else if (kind < 0.7) mutated.insert(place, 1, spice);
        else if (kind < 0.99) mutated.erase(place, 1 + place % 40);
        else mutated.resize(place);
      }
      write(names[file], mutated);
    }
    const auto page = make_page({read_run(folder)}, "now");
    ASSERT_TRUE(page.ends_with("</html>\n"));
    ASSERT_EQ(page.find("nan%"), std::string::npos) << "trial " << trial;
    ASSERT_EQ(page.find("inf%"), std::string::npos) << "trial " << trial;
  }
}

}  // namespace
}  // namespace ingot::report
