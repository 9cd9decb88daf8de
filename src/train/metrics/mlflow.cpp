#include "train/metrics/mlflow.h"

#include <httplib.h>

#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "train/metrics/step_queue.h"

namespace ingot::train {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

// MLflow's limits of one log-batch: 1000 metrics, 100 parameters, a parameter's value of 6000 characters.
constexpr size_t kMostMetrics = 1000, kMostParams = 100, kLongestParam = 6000;
constexpr size_t kLongestAnswerBytes = size_t{1} << 20;

enum class NotFound { is_an_answer, is_a_failure };

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string percent_encoded(const std::string& text) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if ((byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z')) out += character;
    else out += {'%', kHex[byte >> 4], kHex[byte & 15]};
  }
  return out;
}

std::string text_at(const json& value, const char* pointer) {
  const json::json_pointer where(pointer);
  return value.contains(where) && value.at(where).is_string() ? value.at(where).get<std::string>() : "";
}

// No longer than MLflow takes, cut between characters.
std::string param_value(const std::string& text) {
  size_t bytes = std::min(text.size(), kLongestParam);
  while (bytes > 0 && bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  return text.substr(0, bytes);
}

std::map<std::string, std::string> params_of(const json& run) {
  const json::json_pointer where("/run/data/params");
  std::map<std::string, std::string> params;
  if (run.contains(where) && run.at(where).is_array())
    for (const auto& param : run.at(where)) params[text_at(param, "/key")] = text_at(param, "/value");
  return params;
}

// What is to be logged where `logged` is there already. MLflow refuses a parameter whose value has changed, and with it the batch that
// it came in: a later value is a parameter of its own, NAME.value_2.
NamedSettings params_to_log(const NamedSettings& params, const std::map<std::string, std::string>& logged) {
  NamedSettings fresh;
  for (const auto& [name, text] : params) {
    const auto value = param_value(text);
    auto key = name;
    auto last = logged.end();
    for (int nth = 2; logged.contains(key); ++nth) {
      last = logged.find(key);
      key = name + ".value_" + std::to_string(nth);
    }
    if (last == logged.end() || last->second != value) fresh.emplace_back(key, value);
  }
  return fresh;
}

}  // namespace

void check_mlflow_url(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  const auto rest = url.starts_with(kScheme) ? url.substr(kScheme.size()) : std::string();
  if (rest.empty() || rest.find_first_of("/ \t\r\n@?#") != std::string::npos)
    throw base::ConfigError("log.mlflow = \"{}\" is not of the form http://HOST:PORT, or \"\" to switch it off", url);
}

struct MlflowLogger::State {
  MlflowOptions options;
  std::filesystem::path file;
  NamedSettings params;
  std::string run_id;
  bool has_begun = false, has_complained = false;  // of the sender's thread

  StepQueue queue;
  std::mutex mutex;
  bool is_ending = false;
  MlflowEnd how = MlflowEnd::failed;
  Clock::time_point deadline = Clock::time_point::max();  // of all requests, once it is ending
  std::thread thread;

  State(MlflowOptions chosen, std::filesystem::path id_file, NamedSettings settings)
      : options(std::move(chosen)), file(std::move(id_file)), params(std::move(settings)), queue(options.most_waiting) {}

  // The answer's body, empty where 404 is one; nothing when the request failed, with `why`.
  std::optional<json> ask(const char* method, const std::string& path, const json& body, std::string& why,
                          NotFound not_found = NotFound::is_a_failure) {
    auto left = std::chrono::duration<double>(options.timeout_s);
    {
      const std::lock_guard lock(mutex);
      if (is_ending) left = std::min(left, std::chrono::duration<double>(deadline - Clock::now()));
    }
    const auto left_ms = std::chrono::duration_cast<std::chrono::milliseconds>(left);
    if (left_ms.count() <= 0) {
      why = "the time is up";
      return std::nullopt;
    }
    httplib::Client client(options.url);
    client.set_connection_timeout(left_ms);
    client.set_read_timeout(left_ms);
    client.set_write_timeout(left_ms);
    // The library's time-outs are of one read each; a server that sends a byte now and then is cut off here.
    const auto until = Clock::now() + left_ms;
    std::string answer;
    httplib::Request request;
    request.method = method;
    request.path = "/api/2.0/mlflow/" + path;
    if (!body.is_null()) {
      request.body = body.dump(-1, ' ', false, json::error_handler_t::replace);
      request.set_header("Content-Type", "application/json");
    }
    request.content_receiver = [&](const char* data, size_t bytes, uint64_t, uint64_t) {
      answer.append(data, bytes);
      return answer.size() <= kLongestAnswerBytes && Clock::now() < until;
    };
    const auto result = client.send(request);
    if (!result) {
      why = "no answer: " + httplib::to_string(result.error());
      return std::nullopt;
    }
    if (result->status == 404 && not_found == NotFound::is_an_answer) return json::object();
    if (result->status != 200) {
      why = "status " + std::to_string(result->status) + ": " + answer.substr(0, 200);
      return std::nullopt;
    }
    auto parsed = json::parse(answer, nullptr, false);
    if (!parsed.is_object()) {
      why = "the answer is no JSON object";
      return std::nullopt;
    }
    return parsed;
  }

  bool begin(std::string& why) {
    std::map<std::string, std::string> logged;
    if (!run_id.empty() && !reopen_run(logged, why)) return false;
    if (run_id.empty() && !create_run(why)) return false;
    send_params(params_to_log(params, logged));
    return true;
  }

  // Leaves run_id empty when the server has the run no longer.
  bool reopen_run(std::map<std::string, std::string>& logged, std::string& why) {
    const auto known = ask("GET", "runs/get?run_id=" + percent_encoded(run_id), {}, why, NotFound::is_an_answer);
    if (!known) return false;
    if (text_at(*known, "/run/info/run_id").empty() || text_at(*known, "/run/info/lifecycle_stage") == "deleted") {
      base::log_warning("MLflow at {} has no run {} any more; the resumed run is a new one there", options.url, run_id);
      run_id.clear();
      return true;
    }
    logged = params_of(*known);
    return ask("POST", "runs/update", {{"run_id", run_id}, {"status", "RUNNING"}}, why).has_value();
  }

  void send_params(const NamedSettings& fresh) {
    for (size_t first = 0; first < fresh.size(); first += kMostParams) {
      auto batch = json::array();
      for (size_t i = first; i < std::min(fresh.size(), first + kMostParams); ++i)
        batch.push_back({{"key", fresh[i].first}, {"value", fresh[i].second}});
      std::string refused;
      if (!ask("POST", "runs/log-batch", {{"run_id", run_id}, {"params", batch}}, refused))
        base::log_warning("MLflow did not take all settings of the run: {}", refused);
    }
  }

  bool create_run(std::string& why) {
    const auto found =
        ask("GET", "experiments/get-by-name?experiment_name=" + percent_encoded(options.experiment), {}, why, NotFound::is_an_answer);
    if (!found) return false;
    auto experiment = text_at(*found, "/experiment/experiment_id");
    if (experiment.empty()) {
      const auto made = ask("POST", "experiments/create", {{"name", options.experiment}}, why);
      if (!made) return false;
      experiment = text_at(*made, "/experiment_id");
    }
    json body = {{"experiment_id", experiment}, {"start_time", now_ms()}};
    if (!options.run_name.empty()) body["run_name"] = options.run_name;
    const auto made = ask("POST", "runs/create", body, why);
    if (!made) return false;
    run_id = text_at(*made, "/run/info/run_id");
    if (run_id.empty()) {
      why = "it gave the run no id";
      return false;
    }
    try {
      base::write_file_atomically(file, json({{"run_id", run_id}}).dump() + "\n");
    } catch (const base::FileError& failure) {
      base::log_warning("{}; a resumed run will be another one in MLflow", failure.what());
    }
    base::log_info("MLflow at {}: experiment '{}', run {}", options.url, options.experiment, run_id);
    return true;
  }

  bool send(const std::vector<StepScalars>& steps, std::string& why) {
    if (!has_begun && !(has_begun = begin(why))) return false;
    auto metrics = json::array();
    for (const auto& step : steps)
      for (const auto& [tag, value] : step.scalars)
        metrics.push_back({{"key", tag}, {"value", value}, {"timestamp", static_cast<int64_t>(step.time_s * 1e3)}, {"step", step.step}});
    return metrics.empty() || ask("POST", "runs/log-batch", {{"run_id", run_id}, {"metrics", metrics}}, why).has_value();
  }

  void run() {
    std::string why;
    if (!(has_begun = begin(why))) complain(why);
    for (auto steps = queue.take(kMostMetrics); !steps.empty(); steps = queue.take(kMostMetrics)) {
      if (send(steps, why)) continue;
      queue.drop(steps.size());
      complain(why);
    }
    const char* status = how == MlflowEnd::finished ? "FINISHED" : how == MlflowEnd::failed ? "FAILED" : "KILLED";
    if (has_begun && !ask("POST", "runs/update", {{"run_id", run_id}, {"status", status}, {"end_time", now_ms()}}, why)) complain(why);
    if (queue.dropped() > 0) base::log_warning("MLflow at {}: the metrics of {} steps were not delivered", options.url, queue.dropped());
  }

  void complain(const std::string& why) {
    if (!has_complained) base::log_warning("MLflow at {}: {}; the run goes on, these metrics are lost to it", options.url, why);
    has_complained = true;
  }
};

MlflowLogger::MlflowLogger(const std::filesystem::path& run_dir, MlflowOptions options, NamedSettings params, bool resumes) {
  check_mlflow_url(options.url);
  state_ = std::make_unique<State>(std::move(options), run_dir / "mlflow.json", std::move(params));
  if (resumes && std::filesystem::exists(state_->file)) {
    const auto kept = json::parse(base::read_file(state_->file), nullptr, false);
    if (kept.is_object()) state_->run_id = text_at(kept, "/run_id");
  }
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

MlflowLogger::~MlflowLogger() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_ending = true;
    state_->deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(state_->options.timeout_s));
  }
  state_->queue.close();
  state_->thread.join();
}

void MlflowLogger::log(StepScalars step) {
  // JSON has no NaN or Inf: metrics.jsonl says where there were some.
  std::erase_if(step.scalars, [](const Scalar& scalar) { return !std::isfinite(scalar.value); });
  if (step.scalars.size() > kMostMetrics) step.scalars.resize(kMostMetrics);
  state_->queue.push(std::move(step));
}

void MlflowLogger::end(MlflowEnd how) {
  const std::lock_guard lock(state_->mutex);
  state_->how = how;
}

int64_t MlflowLogger::dropped() const { return state_->queue.dropped(); }

}  // namespace ingot::train
