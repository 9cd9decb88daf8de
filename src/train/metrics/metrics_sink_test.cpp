#include "train/metrics/metrics_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/files.h"
#include "train/metrics/run_facts.h"

namespace ingot::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class MetricsSinkTest : public ::testing::Test {
 protected:
  fs::path folder = fs::temp_directory_path() / ("ingot_metrics_sink_" + std::to_string(::getpid()));
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }

  std::vector<json> lines() const {
    std::vector<json> all;
    std::ifstream file(folder / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) all.push_back(json::parse(line));
    return all;
  }
  int event_files() const {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(folder)) count += entry.path().filename().string().starts_with("events.out.tfevents.");
    return count;
  }
  static StepRecord record_of(int64_t step) {
    StepRecord record;
    record.step = step;
    record.steps = 10;
    record.loss = 10.0 - static_cast<double>(step);
    record.expert_load = expert_load_of({{1, 2}, {3, 0}});
    return record;
  }
};

TEST_F(MetricsSinkTest, a_resumed_run_continues_the_lines_marks_the_first_and_opens_a_new_event_file) {
  {
    MetricsSink sink(folder, {}, 0);
    for (int64_t step = 1; step <= 5; ++step) sink.record(record_of(step));
  }
  {
    MetricsSink sink(folder, {}, 3);
    for (int64_t step = 4; step <= 6; ++step) sink.record(record_of(step));
  }
  const auto all = lines();
  ASSERT_EQ(all.size(), 6u);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]["step"], i + 1);
    EXPECT_EQ(all[i].contains("resumed"), i == 3);
    EXPECT_GT(all[i]["time_s"], 1.7e9);
  }
  EXPECT_EQ(event_files(), 2);
}

TEST_F(MetricsSinkTest, a_taken_port_and_switched_off_outputs_do_not_stop_the_run) {
  const PrometheusEndpoint other("127.0.0.1:0");
  LogConfig config;
  config.prometheus = "127.0.0.1:" + std::to_string(other.port());
  config.tensorboard = false;
  MetricsSink sink(folder, config, 0);
  sink.record(record_of(1));
  EXPECT_EQ(lines().size(), 1u);
  EXPECT_EQ(event_files(), 0);
}

TEST_F(MetricsSinkTest, a_full_disk_costs_lines_but_not_the_run) {
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  MetricsSink sink(folder, {}, 0);
  sink.record(record_of(1));
  struct rlimit full = before;
  full.rlim_cur = 10;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  sink.record(record_of(2));
  sink.record(record_of(3));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  sink.record(record_of(4));
  const auto all = lines();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1]["step"], 4);
}

TEST_F(MetricsSinkTest, run_facts_replace_the_older_ones_as_a_whole) {
  write_run_facts(folder, {.model = "zaya1", .parameters = 8840488784, .active_parameters = 753608528});
  write_run_facts(folder, {.model = "llama \"3\"", .parameters = 1, .active_parameters = 1, .peak_tflops = 0.2});
  const json facts = json::parse(base::read_file(folder / "run.json"));
  EXPECT_EQ(facts["model"], "llama \"3\"");
  EXPECT_EQ(facts["parameters"], 1);
  EXPECT_EQ(facts["peak_tflops"], 0.2);
}

}  // namespace
}  // namespace ingot::train
