// What lies in the database, read with SQLite; tests/python/trackio_test.py reads it with Trackio.
#include "train/metrics/trackio.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/files.h"

namespace ingot::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Trackio : public ::testing::Test {
 protected:
  fs::path folder = fs::temp_directory_path() / ("ingot_trackio_" + std::to_string(::getpid()));
  void TearDown() override { fs::remove_all(folder); }

  TrackioOptions options(const std::string& run_id = "0a1b", double timeout_s = 5) const {
    return {"a-project", folder / "made", run_id, "run of " + run_id, timeout_s, 4096};
  }
  fs::path path() const { return folder / "made/a-project.db"; }

  /// The rows of a query, columns joined by a space.
  std::vector<std::string> rows(const std::string& sql) const {
    sqlite3* database = nullptr;
    std::vector<std::string> all;
    EXPECT_EQ(sqlite3_open_v2(path().c_str(), &database, SQLITE_OPEN_READWRITE, nullptr), SQLITE_OK);
    sqlite3_busy_timeout(database, 10000);  // a writer may be at work
    const auto add_row = [](void* rows, int columns, char** values, char**) {
      std::string row;
      for (int i = 0; i < columns; ++i) row += (i ? " " : "") + std::string(values[i] ? values[i] : "NULL");
      static_cast<std::vector<std::string>*>(rows)->push_back(row);
      return 0;
    };
    char* error = nullptr;
    EXPECT_EQ(sqlite3_exec(database, sql.c_str(), add_row, &all, &error), SQLITE_OK) << error;
    sqlite3_free(error);
    sqlite3_close(database);
    return all;
  }
};

StepScalars step_of(int64_t step) { return {1.5 + static_cast<double>(step), step, {{"train/loss", 8.0 / static_cast<double>(step)}}}; }

TEST_F(Trackio, a_run_has_a_row_for_each_step_and_its_settings) {
  {
    TrackioWriter writer(options(), {{"train.steps", "2"}, {"log.tensorboard", "true"}, {"model.family", "llama"}, {"train.lr", "1e-3"}},
                         0);
    writer.log(step_of(1));
    writer.log({1700000000.25, 2, {{"a", std::nan("")}, {"b", -std::numeric_limits<double>::infinity()}, {"c", 0.1}}});
  }
  EXPECT_EQ(rows("SELECT run_id, run_name, step, timestamp, metrics FROM metrics ORDER BY id"),
            (std::vector<std::string>{R"(0a1b run of 0a1b 1 1970-01-01T00:00:02.500000+00:00 {"train/loss":8.0})",
                                      R"(0a1b run of 0a1b 2 2023-11-14T22:13:20.250000+00:00 {"a":"NaN","b":"-Infinity","c":0.1})"}));
  const auto configs = rows("SELECT config FROM configs");
  ASSERT_EQ(configs.size(), 1u);
  const auto config = json::parse(configs[0]);
  EXPECT_EQ(config["train.steps"], 2);
  EXPECT_EQ(config["train.lr"], 1e-3);
  EXPECT_EQ(config["log.tensorboard"], true);
  EXPECT_EQ(config["model.family"], "llama");
  EXPECT_THAT(config["_Created"].get<std::string>(), ::testing::MatchesRegex("20.*T.*:.*:.*\\.......\\+00:00"));
}

TEST_F(Trackio, a_resumed_run_takes_back_the_steps_that_it_does_again_and_leaves_others_alone) {
  for (const char* run : {"0a1b", "ffff"}) {
    TrackioWriter writer(options(run), {{"train.steps", "5"}}, 0);
    for (int64_t step = 1; step <= 5; ++step) writer.log(step_of(step));
  }
  const auto created = rows("SELECT created_at FROM configs WHERE run_id = '0a1b'");
  rows("UPDATE configs SET run_name = 'renamed' WHERE run_id = '0a1b'");
  {
    TrackioWriter writer(options(), {{"train.steps", "6"}}, 3);
    for (int64_t step = 4; step <= 6; ++step) writer.log(step_of(step));
  }
  EXPECT_EQ(rows("SELECT step FROM metrics WHERE run_id = '0a1b' ORDER BY id"), (std::vector<std::string>{"1", "2", "3", "4", "5", "6"}));
  EXPECT_EQ(rows("SELECT count(*) FROM metrics WHERE run_id = 'ffff'"), std::vector<std::string>{"5"});
  EXPECT_EQ(rows("SELECT run_name FROM metrics WHERE step = 6"), std::vector<std::string>{"renamed"});
  EXPECT_EQ(rows("SELECT created_at FROM configs WHERE run_id = '0a1b'"), created);
  EXPECT_EQ(json::parse(rows("SELECT config FROM configs WHERE run_id = '0a1b'").at(0))["train.steps"], 6);
  { TrackioWriter(options(), {}, 0); }
  EXPECT_EQ(rows("SELECT count(*) FROM metrics WHERE run_id = '0a1b'"), std::vector<std::string>{"0"}) << "begun anew";
}

TEST_F(Trackio, who_holds_the_database_costs_the_run_no_time_and_later_steps_are_written) {
  { TrackioWriter(options(), {}, 0); }
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(path().c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  const auto start = std::chrono::steady_clock::now();
  TrackioWriter writer(options("0a1b", 0.1), {}, 0);
  writer.log(step_of(1));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(90));
  for (int tries = 0; tries < 500 && writer.dropped() == 0; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(writer.dropped(), 1);
  ASSERT_EQ(sqlite3_exec(other, "ROLLBACK", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(other);
  writer.log(step_of(2));
  for (int tries = 0; tries < 500 && rows("SELECT step FROM metrics").empty(); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(rows("SELECT step FROM metrics"), std::vector<std::string>{"2"});
  EXPECT_EQ(writer.dropped(), 1);
}

TEST_F(Trackio, files_that_are_no_database_older_tables_and_folders_that_cannot_be_are_left_alone) {
  fs::create_directories(folder / "made");
  base::write_file_atomically(path(), std::string(4096, 'x'));
  {
    TrackioWriter writer(options(), {}, 0);
    writer.log(step_of(1));
  }
  EXPECT_EQ(base::read_file(path()), std::string(4096, 'x'));
  fs::remove(path());
  base::write_file_atomically(path(), "");
  rows("CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)");
  {
    TrackioWriter writer(options(), {}, 0);
    writer.log(step_of(1));
  }
  EXPECT_EQ(rows("SELECT count(*) FROM metrics"), std::vector<std::string>{"0"});
  auto nowhere = options();
  nowhere.folder = path() / "below a file";
  TrackioWriter writer(nowhere, {}, 0);
  writer.log(step_of(1));
  for (int tries = 0; tries < 500 && writer.dropped() == 0; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(writer.dropped(), 1);
}

TEST_F(Trackio, a_full_disk_costs_rows_and_the_database_stays_whole) {
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  TrackioWriter writer(options(), {}, 0);
  writer.log(step_of(1));
  for (int tries = 0;
       tries < 500 && (!fs::exists(path()) || rows("SELECT name FROM sqlite_master").empty() || rows("SELECT step FROM metrics").empty());
       ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  struct rlimit full = before;
  full.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  writer.log(step_of(2));
  for (int tries = 0; tries < 500 && writer.dropped() == 0; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(writer.dropped(), 1);
  writer.log(step_of(3));
  for (int tries = 0; tries < 500 && rows("SELECT step FROM metrics").size() < 2; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(rows("SELECT step FROM metrics"), (std::vector<std::string>{"1", "3"}));
  EXPECT_EQ(rows("PRAGMA integrity_check"), std::vector<std::string>{"ok"});
}

TEST(TrackioSettings, names_that_trackio_would_change_or_keeps_for_itself_are_refused) {
  for (const char* wrong : {"", "a b", "a/b", "..", "a.b", "registry-a", "runs_system", "runs_artifact_versions"})
    EXPECT_THROW(check_trackio_project(wrong), base::ConfigError) << wrong;
  for (const char* right : {"a", "_system", "Zaya-1_b"}) EXPECT_NO_THROW(check_trackio_project(right)) << right;
}

}  // namespace
}  // namespace ingot::train
