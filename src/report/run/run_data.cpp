#include "report/run/run_data.h"

#include <toml++/toml.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "report/page/html.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kMaxSmallFileBytes = int64_t{4} << 20;
constexpr size_t kMaxEntries = 400, kMaxTextBytes = 300;
constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kMaxWarnings = 20, kLogTailBytes = size_t{1} << 20;

void add(NamedTexts& out, const std::string& name, const std::string& value) {
  if (out.size() < kMaxEntries) out.emplace_back(shortened(name, kMaxTextBytes), shortened(value, kMaxTextBytes));
}

void flatten(const toml::table& table, const std::string& prefix, NamedTexts& out) {
  for (const auto& [key, node] : table) {
    if (out.size() >= kMaxEntries) return;
    const std::string name = prefix + std::string(key.str());
    if (const auto* inner = node.as_table()) {
      flatten(*inner, name + ".", out);
    } else if (const auto* text = node.as_string()) {
      add(out, name, text->get());
    } else if (const auto* value = node.as_floating_point()) {
      add(out, name, fmt::format("{}", value->get()));
    } else {
      std::ostringstream printed;
      node.visit([&](const auto& typed) { printed << typed; });
      add(out, name, printed.str());
    }
  }
}

void flatten(const nlohmann::ordered_json& node, const std::string& name, int depth, NamedTexts& out) {
  if (out.size() >= kMaxEntries) return;
  if (node.is_object() && depth < 8) {
    for (const auto& [key, inner] : node.items()) flatten(inner, name.empty() ? key : name + "." + key, depth + 1, out);
  } else if (node.is_array()) {
    add(out, name, fmt::format("{} entries", node.size()));
  } else if (!node.is_object()) {
    add(out, name,
        node.is_string() ? node.get<std::string>() : node.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
}

void read_config(RunData& run) {
  const auto path = run.folder / "config.toml";
  if (!fs::exists(path)) {
    run.remarks.push_back("config.toml is missing, so no settings are shown");
    return;
  }
  try {
    flatten(toml::parse(base::read_file(path, kMaxSmallFileBytes)), "", run.settings);
  } catch (const toml::parse_error& wrong) {
    run.remarks.push_back(
        fmt::format("config.toml cannot be read: line {}: {}", wrong.source().begin.line, shortened(wrong.description(), kMaxTextBytes)));
  } catch (const base::FileError& failure) {
    run.remarks.push_back(failure.what());
  }
}

double positive(const nlohmann::ordered_json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number()) return 0;
  const auto value = found->get<double>();
  return value > 0 && value < 1e30 ? value : 0;
}

// Reads an optional JSON file; false when it is missing or broken.
bool read_json(RunData& run, const char* file, nlohmann::ordered_json& document) {
  const auto path = run.folder / file;
  if (!fs::exists(path)) return false;
  try {
    document = nlohmann::ordered_json::parse(base::read_file(path, kMaxSmallFileBytes), nullptr, /*allow_exceptions=*/false);
    if (document.is_object()) return true;
    run.remarks.push_back(fmt::format("{} is not a JSON object", file));
  } catch (const base::FileError& failure) {
    run.remarks.push_back(failure.what());
  }
  return false;
}

void read_facts(RunData& run) {
  nlohmann::ordered_json document;
  if (read_json(run, "run.json", document)) {
    flatten(document, "", 0, run.facts);
    run.parameters = positive(document, "parameters");
    run.active_parameters = positive(document, "active_parameters");
    if (const auto text = document.find("mfu_convention"); text != document.end() && text->is_string())
      run.mfu_convention = shortened(text->get<std::string>(), 4 * kMaxTextBytes);
  }
  if (read_json(run, "profile.json", document)) flatten(document, "", 0, run.profile);
}

// Refuses what is no regular file.
int64_t size_of_regular_file(const fs::path& path) { return base::MappedFile(path).size_bytes(); }

template <class Reader>
void feed(const fs::path& path, Reader& reader) {
  std::ifstream file(path, std::ios::binary);
  std::string piece(kPieceBytes, '\0');
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    reader.feed({piece.data(), static_cast<size_t>(file.gcount())});
  }
}

void read_metrics_file(RunData& run, LastLine last) {
  const auto path = run.folder / "metrics.jsonl";
  if (!fs::exists(path)) {
    run.remarks.push_back("metrics.jsonl is missing: the run has not finished a step");
    return;
  }
  try {
    MetricsReader reader(size_of_regular_file(path));
    feed(path, reader);
    run.metrics = reader.finish(last);
  } catch (const base::FileError& failure) {
    run.remarks.push_back(failure.what());
    return;
  }
  const auto& lines = run.metrics.lines;
  if (run.metrics.step.empty()) run.remarks.push_back("metrics.jsonl has no usable line");
  if (lines.unreadable > 0)
    run.remarks.push_back(fmt::format("{} of {} lines of metrics.jsonl could not be read and were left out", grouped(lines.unreadable),
                                      grouped(lines.total)));
  if (lines.empty > 0) run.remarks.push_back(fmt::format("{} lines of metrics.jsonl are empty", grouped(lines.empty)));
  if (lines.redone > 0)
    run.remarks.push_back(fmt::format("{} steps were done again after going back; the later values are shown", grouped(lines.redone)));
}

// A run without checkpoints has no such file, or an empty one.
void read_checkpoints_file(RunData& run, LastLine last) {
  const auto path = run.folder / "checkpoints.jsonl";
  if (!fs::exists(path)) return;
  try {
    if (size_of_regular_file(path) == 0) return;
    CheckpointsReader reader;
    feed(path, reader);
    run.checkpoints = reader.finish(last);
  } catch (const base::FileError& failure) {
    run.remarks.push_back(failure.what());
    return;
  }
  const auto& read = run.checkpoints;
  if (read.unreadable > 0)
    run.remarks.push_back(fmt::format("{} of {} lines of checkpoints.jsonl could not be read and were left out", grouped(read.unreadable),
                                      grouped(read.lines)));
  if (read.odd > 0)
    run.remarks.push_back(fmt::format("{} of {} lines of checkpoints.jsonl lack values or have some that cannot be; those are not shown",
                                      grouped(read.odd), grouped(read.lines)));
}

void read_events_file(RunData& run) {
  try {
    run.happened = read_happened(run.folder, run.metrics);
  } catch (const base::FileError& failure) {
    run.remarks.push_back(failure.what());
  }
  if (run.happened.broken_lines > 0)
    run.remarks.push_back(fmt::format("{} lines of events.jsonl could not be read and were left out", grouped(run.happened.broken_lines)));
}

// Absolute, without a slash at the end.
fs::path own_path(const fs::path& folder) {
  const auto normal = fs::absolute(folder).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

// The log's lines begin "2026-01-31 12:00:00.000 warning …".
void read_log(RunData& run) {
  const auto path = run.folder / "log.txt";
  if (!fs::exists(path)) return;
  try {
    const auto size_bytes = base::MappedFile(path).size_bytes();
    std::ifstream file(path, std::ios::binary);
    file.seekg(std::max<int64_t>(0, size_bytes - static_cast<int64_t>(kLogTailBytes)));
    std::string content(std::min(kLogTailBytes, static_cast<size_t>(size_bytes)), '\0');
    file.read(content.data(), static_cast<std::streamsize>(content.size()));
    const std::string_view text(content.data(), static_cast<size_t>(file.gcount()));
    std::deque<std::string> last;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const auto line = text.substr(begin, end - begin);
      const auto level = line.size() > 24 ? line.substr(24) : std::string_view();
      if (level.starts_with("warning ") || level.starts_with("error ")) {
        ++run.log_warning_count;
        last.push_back(shortened(line, 2 * kMaxTextBytes));
        if (last.size() > kMaxWarnings) last.pop_front();
      }
      begin = end + 1;
    }
    run.log_warnings.assign(last.begin(), last.end());
  } catch (const base::FileError& failure) {
    run.remarks.push_back(failure.what());
  }
}

}  // namespace

void require_run(const RunData& run) {
  if (run.metrics.step.empty() && run.happened.events.empty() && run.settings.empty())
    throw base::DataError("{} is no run directory: it has no metrics.jsonl, events.jsonl or config.toml", run.folder.string());
}

RunData read_run(const fs::path& folder, LastLine last) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw base::DataError("{} is not a run directory{}; give the --run-dir of an `ingot train`", folder.string(),
                          fs::exists(folder, error) ? "" : ": there is no such folder");
  }
  RunData run;
  run.folder = folder;
  run.name = own_path(folder).filename().string();
  try {
    read_metrics_file(run, last);
    read_checkpoints_file(run, last);
    read_events_file(run);
    read_config(run);
    read_facts(run);
    read_log(run);
  } catch (const fs::filesystem_error& failure) {
    throw base::DataError("cannot look into {}: {}", folder.string(), failure.code().message());
  }
  return run;
}

namespace {

// Gives every run whose name is not unique another one; `rename` gets the run and its place among its namesakes.
template <class Rename>
void tell_apart(std::vector<RunData>& runs, const Rename& rename) {
  std::map<std::string, std::vector<size_t>> by_name;
  for (size_t i = 0; i < runs.size(); ++i) by_name[runs[i].name].push_back(i);
  for (const auto& [name, indices] : by_name) {
    if (indices.size() == 1) continue;
    for (size_t place = 0; place < indices.size(); ++place) rename(runs[indices[place]], place);
  }
}

}  // namespace

std::vector<RunData> read_runs(const std::vector<fs::path>& folders, LastLine last) {
  std::vector<RunData> runs;
  for (const auto& folder : folders) runs.push_back(read_run(folder, last));
  tell_apart(runs, [](RunData& run, size_t) { run.name = own_path(run.folder).parent_path().filename().string() + "/" + run.name; });
  for (auto& run : runs) run.name = shortened(run.name, 60);
  tell_apart(runs, [](RunData& run, size_t place) { run.name += fmt::format(" #{}", place + 1); });
  return runs;
}

}  // namespace ingot::report
