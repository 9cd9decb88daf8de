#include "train/metrics/trackio.h"

#include <fmt/chrono.h>
#include <sqlite3.h>

#include <array>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "train/metrics/step_queue.h"

namespace ingot::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr size_t kMostScalars = 100000;  // of one transaction

// The documented columns. Trackio 0.43 has no more that a writer must fill.
constexpr const char* kTables = R"(
  CREATE TABLE IF NOT EXISTS metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL,
    run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL);
  CREATE TABLE IF NOT EXISTS configs (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, run_name TEXT NOT NULL,
    config TEXT NOT NULL, created_at TEXT NOT NULL, UNIQUE(run_id));
  CREATE INDEX IF NOT EXISTS idx_metrics_run_step ON metrics(run_id, step);
)";

// What SQLite said; it does not leave this file.
struct DatabaseFailure {
  std::string why;
};

class Statement {
 public:
  Statement(sqlite3* database, const char* sql) : database_(database) { check(sqlite3_prepare_v2(database, sql, -1, &handle_, nullptr)); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  ~Statement() { sqlite3_finalize(handle_); }

  Statement& bind(int nth, const std::string& text) {
    check(sqlite3_bind_text(handle_, nth, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT));
    return *this;
  }
  Statement& bind(int nth, int64_t number) {
    check(sqlite3_bind_int64(handle_, nth, number));
    return *this;
  }
  /// Whether there is a row.
  bool step() {
    const int result = sqlite3_step(handle_);
    if (result != SQLITE_ROW && result != SQLITE_DONE) check(result);
    return result == SQLITE_ROW;
  }
  void run() {
    while (step()) {
    }
    check(sqlite3_reset(handle_));
  }
  std::string text(int column) const {
    const auto* bytes = static_cast<const char*>(sqlite3_column_blob(handle_, column));
    return bytes ? std::string(bytes, static_cast<size_t>(sqlite3_column_bytes(handle_, column))) : std::string();
  }

 private:
  void check(int result) const {
    if (result != SQLITE_OK) throw DatabaseFailure{sqlite3_errmsg(database_)};
  }

  sqlite3* database_;
  sqlite3_stmt* handle_ = nullptr;
};

class Database {
 public:
  Database(const fs::path& path, double timeout_s) {
    const int result = sqlite3_open_v2(path.c_str(), &handle_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
    if (result != SQLITE_OK) {
      const DatabaseFailure failure{handle_ ? sqlite3_errmsg(handle_) : sqlite3_errstr(result)};
      sqlite3_close_v2(handle_);
      throw failure;
    }
    sqlite3_busy_timeout(handle_, static_cast<int>(timeout_s * 1e3));
  }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database() { sqlite3_close_v2(handle_); }

  void run(const char* sql) {
    if (sqlite3_exec(handle_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) throw DatabaseFailure{sqlite3_errmsg(handle_)};
  }
  /// All of `work`, or nothing of it.
  template <typename Work>
  void transaction(Work work) {
    run("BEGIN IMMEDIATE");
    try {
      work();
      run("COMMIT");
    } catch (const DatabaseFailure&) {
      sqlite3_exec(handle_, "ROLLBACK", nullptr, nullptr, nullptr);
      throw;
    }
  }
  sqlite3* handle() const { return handle_; }

 private:
  sqlite3* handle_ = nullptr;
};

std::string timestamp(double time_s) {
  const auto microseconds = static_cast<int64_t>(std::llround(time_s * 1e6));
  const std::chrono::sys_time<std::chrono::seconds> seconds(std::chrono::seconds(microseconds / 1000000));
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06d}+00:00", seconds, microseconds % 1000000);
}

std::string to_text(const ordered_json& value) { return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace); }

// JSON has no NaN or Inf; Trackio reads them from these words.
ordered_json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

std::string metrics_text(const StepScalars& step) {
  auto values = ordered_json::object();
  for (const auto& [tag, value] : step.scalars) values[tag] = number(value);
  return to_text(values);
}

// Numbers and truth values stay such, so that Trackio can sort and filter by them.
std::string config_text(const NamedSettings& settings, const std::string& created) {
  auto config = ordered_json::object();
  for (const auto& [name, text] : settings) {
    auto value = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    config[name] = value.is_number() || value.is_boolean() ? std::move(value) : ordered_json(text);
  }
  config["_Username"] = nullptr;
  config["_Created"] = created;
  config["_Group"] = nullptr;
  return to_text(config);
}

}  // namespace

struct TrackioWriter::State {
  TrackioOptions options;
  fs::path path;
  NamedSettings settings;
  int64_t resumed_step = 0;
  StepQueue queue;
  std::thread thread;
  // Of the writer's thread.
  std::unique_ptr<Database> database;
  std::string run_name;
  bool has_complained = false;

  State(TrackioOptions chosen, NamedSettings named, int64_t resumed)
      : options(std::move(chosen)),
        path(options.folder / (options.project + ".db")),
        settings(std::move(named)),
        resumed_step(resumed),
        queue(options.most_waiting) {}

  void begin() {
    std::error_code failed;
    fs::create_directories(options.folder, failed);
    if (failed) throw DatabaseFailure{"the folder cannot be made: " + failed.message()};
    auto opened = std::make_unique<Database>(path, options.timeout_s);
    opened->run("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL");
    opened->transaction([&] {
      opened->run(kTables);
      run_name = options.run_name;
      auto created = timestamp(unix_time_s());
      Statement known(opened->handle(), "SELECT run_name, created_at FROM configs WHERE run_id = ?");
      if (known.bind(1, options.run_id).step()) {
        run_name = known.text(0);
        created = known.text(1);
      }
      Statement(opened->handle(), "DELETE FROM metrics WHERE run_id = ? AND step > ?").bind(1, options.run_id).bind(2, resumed_step).run();
      Statement(opened->handle(),
                "INSERT INTO configs (run_id, run_name, config, created_at) VALUES (?, ?, ?, ?) "
                "ON CONFLICT(run_id) DO UPDATE SET config = excluded.config")
          .bind(1, options.run_id)
          .bind(2, run_name)
          .bind(3, config_text(settings, created))
          .bind(4, created)
          .run();
    });
    database = std::move(opened);
    base::log_info("Trackio's project '{}', run '{}', in {}", options.project, run_name, path.string());
  }

  void write(const std::vector<StepScalars>& steps) {
    database->transaction([&] {
      Statement insert(database->handle(), "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?, ?)");
      for (const auto& step : steps)
        insert.bind(1, options.run_id)
            .bind(2, timestamp(step.time_s))
            .bind(3, run_name)
            .bind(4, step.step)
            .bind(5, metrics_text(step))
            .run();
    });
  }

  void run() {
    // At once, so that the run is seen before its first step ends; a failure is tried again with each batch.
    attempt([&] { begin(); });
    for (auto steps = queue.take(kMostScalars); !steps.empty(); steps = queue.take(kMostScalars)) {
      const bool is_written = attempt([&] {
        if (!database) begin();
        write(steps);
        resumed_step = steps.back().step;
      });
      if (!is_written) queue.drop(steps.size());
    }
    database.reset();
    if (queue.dropped() > 0) base::log_warning("Trackio's {}: the metrics of {} steps were not written", path.string(), queue.dropped());
  }

  template <typename Work>
  bool attempt(Work work) {
    try {
      work();
      return true;
    } catch (const DatabaseFailure& failure) {
      database.reset();
      const bool is_old = failure.why.find("run_id") != std::string::npos;
      if (!has_complained)
        base::log_warning("Trackio's {}: {}{}; the run goes on, these metrics are lost to it", path.string(), failure.why,
                          is_old ? " (a database of Trackio before 0.24: open it once with a later one)" : "");
      has_complained = true;
      return false;
    }
  }
};

TrackioWriter::TrackioWriter(TrackioOptions options, NamedSettings settings, int64_t resumed_step)
    : state_(std::make_unique<State>(std::move(options), std::move(settings), resumed_step)) {
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

TrackioWriter::~TrackioWriter() {
  state_->queue.close();
  state_->thread.join();
}

void TrackioWriter::log(StepScalars step) { state_->queue.push(std::move(step)); }

int64_t TrackioWriter::dropped() const { return state_->queue.dropped(); }

fs::path trackio_home() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (const auto folder = variable("TRACKIO_DIR"); !folder.empty()) return folder;
  if (const auto folder = variable("HF_HOME"); !folder.empty()) return fs::path(folder) / "trackio";
  if (const auto folder = variable("XDG_CACHE_HOME"); !folder.empty()) return fs::path(folder) / "huggingface/trackio";
  if (const auto folder = variable("HOME"); !folder.empty()) return fs::path(folder) / ".cache/huggingface/trackio";
  throw base::ConfigError("log.trackio needs a folder: set log.trackio_folder, or TRACKIO_DIR, or HOME");
}

void check_trackio_project(const std::string& project) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
  if (project.empty() || project.size() > 200 || project.find_first_not_of(kAllowed) != std::string::npos)
    throw base::ConfigError("log.trackio = \"{}\" is no project's name: up to 200 letters, digits, - and _, or \"\" to switch it off",
                            project);
  // Under these Trackio keeps registries, and a project's tables when it syncs them.
  constexpr std::array<std::string_view, 8> kReservedEnds = {"_system",
                                                             "_configs",
                                                             "_traces",
                                                             "_artifacts",
                                                             "_artifact_versions",
                                                             "_artifact_aliases",
                                                             "_run_artifact_links",
                                                             "_external_run_artifact_links"};
  if (project.starts_with("registry-"))
    throw base::ConfigError("log.trackio = \"{}\": Trackio keeps names that begin with registry- for its registries", project);
  for (const auto end : kReservedEnds)
    if (project.size() > end.size() && project.ends_with(end))
      throw base::ConfigError("log.trackio = \"{}\": Trackio keeps names that end with {} for the tables of other projects", project, end);
}

}  // namespace ingot::train
