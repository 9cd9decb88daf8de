// Against a server of the test's own that answers as MLflow's REST API (version 2.0) documents.
#include "train/metrics/mlflow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/files.h"

namespace ingot::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class FakeMlflow {
 public:
  int status = 200;    // of log-batch
  double delay_s = 0;  // before log-batch is answered
  explicit FakeMlflow() {
    server_.Get("/api/2.0/mlflow/experiments/get-by-name", [](const auto&, auto& response) { response.status = 404; });
    post("experiments/create", [](const json&) { return json{{"experiment_id", "7"}}; });
    post("runs/create", [this](const json&) { return json{{"run", {{"info", {{"run_id", "run" + std::to_string(++runs)}}}}}}; });
    server_.Get("/api/2.0/mlflow/runs/get",
                [this](const httplib::Request& request, httplib::Response& response) { get_run(request, response); });
    post("runs/update", [](const json& body) { return json{{"run_info", {{"run_id", body.at("run_id")}}}}; });
    post("runs/log-batch", [this](const json& body) { return take_params(body); });
    port = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~FakeMlflow() {
    server_.stop();
    thread_.join();
  }
  std::vector<json> asked(const std::string& path) {
    const std::lock_guard lock(mutex_);
    return asked_[path];
  }
  MlflowOptions options(double timeout_s = 5) const {
    return {"http://127.0.0.1:" + std::to_string(port), "an experiment", "a run", timeout_s, 4};
  }
  std::map<std::string, std::string> params(const std::string& run) {
    const std::lock_guard lock(mutex_);
    return params_[run];
  }
  int port = 0, runs = 0;
  std::string stage = "active";  // of every run; "gone": there is none

 private:
  void get_run(const httplib::Request& request, httplib::Response& response) {
    const auto id = request.get_param_value("run_id");
    if (stage == "gone") {
      response.status = 404;
      return;
    }
    auto params = json::array();
    for (const auto& [key, value] : this->params(id)) params.push_back({{"key", key}, {"value", value}});
    response.set_content(json{{"run", {{"info", {{"run_id", id}, {"lifecycle_stage", stage}}}, {"data", {{"params", params}}}}}}.dump(),
                         "application/json");
  }
  // As MLflow 3.17 does: one parameter that changes its value, and none of the batch is taken.
  json take_params(const json& body) {
    const std::lock_guard lock(mutex_);
    auto& known = params_[body.at("run_id")];
    const auto batch = body.value("params", json::array());
    for (const auto& param : batch)
      if (const auto found = known.find(param.at("key")); found != known.end() && found->second != param.at("value"))
        return {{"error_code", "INVALID_PARAMETER_VALUE"}, {"message", "Changing param values is not allowed."}};
    for (const auto& param : batch) known[param.at("key")] = param.at("value");
    return json::object();
  }
  void post(const std::string& path, std::function<json(const json&)> answer) {
    server_.Post("/api/2.0/mlflow/" + path, [this, path, answer](const httplib::Request& request, httplib::Response& response) {
      const auto body = json::parse(request.body);
      {
        const std::lock_guard lock(mutex_);
        asked_[path].push_back(body);
      }
      if (path == "runs/log-batch" && delay_s > 0) std::this_thread::sleep_for(std::chrono::duration<double>(delay_s));
      if (path == "runs/log-batch") response.status = status;
      const auto answered = answer(body);
      if (answered.contains("error_code")) response.status = 400;
      response.set_content(answered.dump(), "application/json");
    });
  }
  httplib::Server server_;
  std::thread thread_;
  std::mutex mutex_;
  std::map<std::string, std::vector<json>> asked_;
  std::map<std::string, std::map<std::string, std::string>> params_;
};

class Mlflow : public ::testing::Test {
 protected:
  fs::path folder = fs::temp_directory_path() / ("ingot_mlflow_" + std::to_string(::getpid()));
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }
};

TEST_F(Mlflow, settings_and_steps_arrive_in_batches_and_the_run_ends) {
  FakeMlflow server;
  NamedSettings params;
  for (int i = 0; i < 150; ++i) params.emplace_back("setting." + std::to_string(i), "v");
  {
    MlflowLogger logger(folder, server.options(), params, false);
    logger.log({12.5, 1, {{"loss", 3}, {"lr", std::nan("")}}});
    logger.end(MlflowEnd::finished);
  }
  size_t most = 0, sent = 0;
  json metric;
  for (const auto& batch : server.asked("runs/log-batch")) {
    most = std::max(most, batch.value("params", json::array()).size());
    sent += batch.value("params", json::array()).size();
    if (batch.contains("metrics")) metric = batch.at("metrics");
  }
  EXPECT_EQ(most, 100);
  EXPECT_EQ(sent, 150);
  EXPECT_EQ(metric, json::array({{{"key", "loss"}, {"value", 3.0}, {"timestamp", 12500}, {"step", 1}}}));
  EXPECT_EQ(server.asked("runs/update").back().at("status"), "FINISHED");
  EXPECT_EQ(server.asked("experiments/create").at(0).at("name"), "an experiment");
}

TEST_F(Mlflow, a_resumed_run_goes_on_with_the_same_run_and_a_new_one_does_not) {
  FakeMlflow server;
  for (const bool resumes : {false, true, false}) MlflowLogger(folder, server.options(), {}, resumes);
  EXPECT_EQ(server.runs, 2);
  const auto updates = server.asked("runs/update");
  ASSERT_EQ(updates.size(), 4);
  EXPECT_EQ(updates[0].at("status"), "FAILED");
  EXPECT_EQ(updates[1], (json{{"run_id", "run1"}, {"status", "RUNNING"}}));
}

// A changed setting was refused, as MLflow's parameters do not change, and up to 99 others of its batch were lost with it.
TEST_F(Mlflow, settings_that_a_resumed_run_has_changed_are_logged_beside_the_first_and_none_is_lost) {
  using Params = std::map<std::string, std::string>;
  FakeMlflow server;
  MlflowLogger(folder, server.options(), {{"train.steps", "10"}, {"optimizer.lr", "1"}}, false);
  MlflowLogger(folder, server.options(), {{"train.steps", "20"}, {"optimizer.lr", "1"}, {"data.seed", "3"}}, true);
  EXPECT_EQ(server.params("run1"),
            (Params{{"train.steps", "10"}, {"train.steps.value_2", "20"}, {"optimizer.lr", "1"}, {"data.seed", "3"}}));
  const auto batches = server.asked("runs/log-batch").size();
  MlflowLogger(folder, server.options(), {{"train.steps", "20"}, {"optimizer.lr", "1"}}, true);
  EXPECT_EQ(server.asked("runs/log-batch").size(), batches) << "nothing is new";
  MlflowLogger(folder, server.options(), {{"train.steps", "10"}, {"optimizer.lr", "1"}}, true);
  EXPECT_EQ(server.params("run1").at("train.steps.value_3"), "10");
  EXPECT_EQ(server.runs, 1);
}

TEST_F(Mlflow, long_settings_are_cut_between_characters_and_are_not_new_when_the_run_resumes) {
  FakeMlflow server;
  const auto text = std::string(5999, 'a') + "é and more";
  for (const bool resumes : {false, true}) MlflowLogger(folder, server.options(), {{"long", text}}, resumes);
  EXPECT_TRUE(server.params("run1").at("long") == std::string(5999, 'a'));
  EXPECT_EQ(server.params("run1").size(), 1);
}

TEST_F(Mlflow, a_run_that_was_deleted_on_the_server_is_begun_anew) {
  for (const char* stage : {"deleted", "gone"}) {
    FakeMlflow server;
    server.stage = stage;
    for (const bool resumes : {false, true}) MlflowLogger(folder, server.options(), {{"a", "1"}}, resumes);
    EXPECT_EQ(server.runs, 2) << stage;
    EXPECT_EQ(server.params("run2").at("a"), "1") << stage;
  }
}

// The answer 404 passed for success, whatever had been asked.
TEST_F(Mlflow, steps_of_a_run_that_is_gone_are_counted_as_not_delivered) {
  FakeMlflow server;
  server.status = 404;
  MlflowLogger logger(folder, server.options(), {}, false);
  logger.log({1, 1, {{"loss", 3}}});
  for (int tries = 0; tries < 500 && logger.dropped() == 0; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(logger.dropped(), 1);
}

TEST_F(Mlflow, a_slow_or_failing_server_costs_the_run_no_time_and_drops_are_counted) {
  FakeMlflow server;
  server.delay_s = 2;
  const auto start = std::chrono::steady_clock::now();
  {
    MlflowLogger logger(folder, server.options(0.5), {}, false);
    for (int64_t step = 1; step <= 100; ++step) logger.log({1, step, {{"loss", 3}}});
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(300));
    EXPECT_GE(logger.dropped(), 90);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4));
  server.delay_s = 0;
  server.status = 500;
  MlflowLogger logger(folder, server.options(), {}, false);
  logger.log({1, 1, {{"loss", 3}}});
  for (int tries = 0; tries < 500 && logger.dropped() == 0; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(logger.dropped(), 1);
}

TEST_F(Mlflow, nobody_listening_and_wrong_addresses) {
  MlflowLogger logger(folder, {"http://127.0.0.1:1", "e", "", 1}, {}, false);
  logger.log({1, 1, {{"loss", 3}}});
  for (const char* wrong : {"127.0.0.1:5000", "http://", "https://host", "http://host:1/path"})
    EXPECT_THROW(check_mlflow_url(wrong), base::ConfigError) << wrong;
}

}  // namespace
}  // namespace ingot::train
