#include "train/metrics/metrics_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "train/metrics/step_record.h"

namespace ingot::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class MetricsFileTest : public ::testing::Test {
 protected:
  fs::path folder = fs::temp_directory_path() / ("ingot_metrics_file_" + std::to_string(::getpid()));
  fs::path path = folder / "metrics.jsonl";
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }
  void write(std::string_view text) { std::ofstream(path, std::ios::binary) << text; }
};

StepRecord record_of(int64_t step) {
  StepRecord record;
  record.step = step;
  record.loss = 1.0 / 3;
  return record;
}

TEST_F(MetricsFileTest, line_has_every_field_of_the_design_and_doubles_read_back_as_they_were) {
  StepRecord record{
      .step = 7, .steps = 10, .tokens = 1 << 20, .loss = 0.1 + 0.2, .grad_norm = 5e-324, .lr = 1e-5 / 3, .step_ms = 12345.678901234567};
  record.tokens_per_s = 1.7976931348623157e308;
  const json line = json::parse(to_json(record).dump());
  for (const char* field : {"step", "tokens", "loss", "grad_norm", "lr", "step_ms", "tokens_per_s", "flops_per_token", "tflops", "mfu",
                            "memory_peak_bytes", "predicted_step_ms", "predicted_memory_bytes", "comm_bytes", "eta_s"}) {
    EXPECT_TRUE(line.contains(field)) << field;
  }
  // The oracle is the C library's own reading of the text.
  const std::string text = to_json(record).dump();
  const auto read = [&](const std::string& name) {
    return std::strtod(text.c_str() + text.find("\"" + name + "\":") + name.size() + 3, nullptr);
  };
  EXPECT_EQ(read("loss"), 0.1 + 0.2);
  EXPECT_EQ(read("grad_norm"), 5e-324);
  EXPECT_EQ(read("lr"), 1e-5 / 3);
  EXPECT_EQ(read("step_ms"), 12345.678901234567);
  EXPECT_EQ(read("tokens_per_s"), 1.7976931348623157e308);
}

TEST_F(MetricsFileTest, nan_and_inf_become_null_and_are_named) {
  auto record = record_of(1);
  record.loss = std::numeric_limits<double>::quiet_NaN();
  record.grad_norm = -std::numeric_limits<double>::infinity();
  record.skipped = true;
  const json line = json::parse(to_json(record).dump());
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_EQ(line["nonfinite"], json({{"loss", "nan"}, {"grad_norm", "-inf"}}));
  EXPECT_EQ(line["skipped"], true);
  EXPECT_FALSE(json::parse(to_json(record_of(1)).dump()).contains("nonfinite"));
}

TEST_F(MetricsFileTest, sources_have_a_loss_each_and_entries_of_one_path_are_one) {
  StepRecord record;
  add_source_loss(record, {"data/web", 3.0, 100});
  add_source_loss(record, {"data/\xff", NAN, 7});
  add_source_loss(record, {"data/web", 2.0, 300});
  const auto line = to_json(record);
  EXPECT_EQ(line["source_loss"]["data/web"].dump(), R"({"loss":2.25,"tokens":400})");
  EXPECT_TRUE(line["source_loss"]["data/\xff"]["loss"].is_null());
  EXPECT_EQ(line["nonfinite"]["source_loss/data/\xff"], "nan");
  EXPECT_FALSE(to_json(StepRecord{}).contains("source_loss"));
}

TEST_F(MetricsFileTest, evaluations_have_a_task_each_with_values_and_errors) {
  StepRecord record;
  record.evaluations = {{"agreement", 40, {{"acc", 0.5, 0.125, true}, {"acc_norm", NAN, std::nullopt, true}}},
                        {"x", 1, {{"loss", 2, std::nullopt, false}}}};
  const auto line = to_json(record);
  EXPECT_EQ(line["evaluations"].dump(),
            R"({"agreement":{"items":40,"acc":0.5,"acc_stderr":0.125,"acc_norm":null},"x":{"items":1,"loss":2.0}})");
  EXPECT_EQ(line["nonfinite"].dump(), R"({"agreement/acc_norm":"nan"})");
  EXPECT_FALSE(to_json(StepRecord{}).contains("evaluations"));
}

TEST_F(MetricsFileTest, expert_load_is_max_mean_and_imbalance_of_each_layer) {
  const auto load = expert_load_of({{10, 30, 20, 20}, {0, 0, 0, 80}});
  EXPECT_EQ(load.max, 80);
  EXPECT_EQ(load.mean, 20);
  EXPECT_EQ(load.imbalance(), 4);
  EXPECT_THAT(load.layers, ::testing::ElementsAre(1.5, 4.0));
  EXPECT_THAT(expert_load_of({{0, 0}, {}}).layers, ::testing::ElementsAre(1.0));
  auto record = record_of(1);
  record.expert_load = load;
  EXPECT_EQ(json::parse(to_json(record).dump())["expert_load"]["tokens"], json({{10, 30, 20, 20}, {0, 0, 0, 80}}));
  record.expert_load = expert_load_of(std::vector<std::vector<int64_t>>(40, std::vector<int64_t>(16, 1)));
  EXPECT_FALSE(to_json(record)["expert_load"].contains("tokens"));
}

TEST_F(MetricsFileTest, resume_drops_later_steps_and_a_torn_line_and_keeps_the_rest_byte_for_byte) {
  const std::string kept = "{\"step\":1,\"loss\":3.0}\nnot json\n{\"step\":2}\n";
  write(kept + "{\"step\":3}\n{\"no\":\"step\"}\n{\"step\":4}\n{\"step\":5,\"lo");
  MetricsFile file(path, 2);
  EXPECT_EQ(base::read_file(path), kept);
  EXPECT_GT(file.dropped_bytes(), 0);
  file.append(to_json(record_of(3)));
  const auto content = base::read_file(path);
  EXPECT_EQ(content.substr(0, kept.size()), kept);
  EXPECT_EQ(json::parse(content.substr(kept.size()))["step"], 3);
}

TEST_F(MetricsFileTest, a_new_run_starts_empty_and_a_resumed_one_keeps_what_is_not_later) {
  write("{\"step\":1}\n{\"step\":2}\n");
  { MetricsFile resumed(path, 9); }
  EXPECT_EQ(fs::file_size(path), 22u);
  { MetricsFile fresh(path, 0); }
  EXPECT_EQ(fs::file_size(path), 0u);
  EXPECT_EQ(fs::file_size(fs::path(path).replace_extension("before.jsonl")), 22u) << "what no checkpoint goes on from stays beside it";
  { MetricsFile missing(folder / "other.jsonl", 5); }
  EXPECT_EQ(fs::file_size(folder / "other.jsonl"), 0u);
}

TEST_F(MetricsFileTest, strange_files_are_cut_without_a_crash) {
  for (const std::string& content :
       {std::string("\n"), std::string("\n\n\n"), std::string("no newline"), std::string("{\"step\":\"7\"}\n[1]\n"),
        std::string("\0\0\n\0", 4), std::string(100000, '[') + "\n", std::string("{\"step\":1e99}\n{\"step\":3}\n")}) {
    write(content);
    MetricsFile file(path, 2);
    file.append(to_json(record_of(3)));
    const auto after = base::read_file(path);
    const size_t last = after.rfind('\n', after.size() - 2);
    EXPECT_EQ(json::parse(after.substr(last == std::string::npos ? 0 : last + 1))["step"], 3);
  }
}

TEST_F(MetricsFileTest, a_folder_in_its_place_is_refused_by_name) {
  fs::create_directories(path);
  try {
    MetricsFile file(path, 0);
    FAIL();
  } catch (const base::FileError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr(path.string()));
  }
}

TEST_F(MetricsFileTest, a_write_that_does_not_fit_leaves_whole_lines_and_the_next_one_succeeds) {
  // A limit on the size of files stands in for a full disk: the write is cut short in the middle of the line.
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  MetricsFile file(path, 0);
  file.append(to_json(record_of(1)));
  const auto whole = fs::file_size(path);
  struct rlimit tight = before;
  tight.rlim_cur = whole + 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  EXPECT_THROW(file.append(to_json(record_of(2))), base::FileError);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(fs::file_size(path), whole);
  file.append(to_json(record_of(3)));
  const auto content = base::read_file(path);
  EXPECT_EQ(json::parse(content.substr(whole))["step"], 3);
}

}  // namespace
}  // namespace ingot::train
