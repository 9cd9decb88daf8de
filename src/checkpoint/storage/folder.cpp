#include "checkpoint/storage/folder.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/format/metadata.h"
#include "checkpoint/load/reader.h"

namespace ingot::checkpoint {
namespace {

constexpr double kUncertainGrace_s = 86400;
constexpr double kMostSkew_s = 60;  // of a file server's clock

bool is_good(const StepFolder& one, const Storage& storage) {
  try {
    Reader reader(one.path, {.storage = &storage});
    return true;
  } catch (const base::Error& damage) {
    base::log_warning("passing over a checkpoint: {}", damage.what());
    return false;
  }
}

// "step_00001000" of ".step_00001000.tmp-…" and ".step_00001000.old"; empty for foreign names.
std::string visible_name_of(const std::string& hidden) {
  const size_t dot = hidden.find('.', 1);
  if (hidden.empty() || hidden[0] != '.' || dot == std::string::npos) return "";
  const std::string name = hidden.substr(1, dot - 1), rest = hidden.substr(dot);
  return step_of(name) && (rest.starts_with(".tmp-") || rest == ".old") ? name : "";
}

// Nothing without one, or when it cannot be read.
std::optional<double> score_of(const StepFolder& one, const Storage& storage) {
  try {
    const Reader reader(one.path, {.check_files = false, .storage = &storage});
    if (!reader.has_extra(kScoreExtra)) return std::nullopt;
    const auto text = reader.extra(kScoreExtra);
    double score = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), score);
    return error == std::errc() && end == text.data() + text.size() && std::isfinite(score) ? std::optional(score) : std::nullopt;
  } catch (const base::Error&) {
    return std::nullopt;
  }
}

// The steps of the `count` lowest scores; of equal ones the newer.
std::set<int64_t> best_of(const std::vector<StepFolder>& newest_first, int64_t count, const Storage& storage) {
  std::vector<std::pair<double, int64_t>> scores;
  for (const auto& one : newest_first)
    if (const auto score = score_of(one, storage)) scores.emplace_back(*score, -one.step);
  std::sort(scores.begin(), scores.end());
  std::set<int64_t> best;
  for (const auto& [score, step] : scores)
    if (static_cast<int64_t>(best.size()) < count) best.insert(-step);
  return best;
}

}  // namespace

std::string step_name(int64_t step) { return fmt::format("step_{:08}", step); }

std::optional<int64_t> step_of(const std::string& name) {
  int64_t step = 0;
  if (!name.starts_with("step_")) return std::nullopt;
  const auto [end, error] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0 || step_name(step) != name) return std::nullopt;
  return step;
}

std::string hidden_name(const std::string& visible_name, const std::string& id) { return fmt::format(".{}.tmp-{}", visible_name, id); }

std::vector<StepFolder> all(const fs::path& folder, const Storage& storage) {
  std::vector<StepFolder> found;
  for (const FolderEntry& entry : storage.list(folder)) {
    const auto step = step_of(entry.name);
    if (entry.is_folder && step) found.push_back({*step, folder / entry.name});
  }
  std::sort(found.begin(), found.end(), [](const StepFolder& a, const StepFolder& b) { return a.step < b.step; });
  return found;
}

std::optional<StepFolder> latest(const fs::path& folder, const Storage& storage) { return latest(folder, {}, storage); }

std::optional<StepFolder> latest(const fs::path& folder, const std::set<fs::path>& damaged, const Storage& storage) {
  const auto found = all(folder, storage);
  const auto newest = std::find_if(found.rbegin(), found.rend(),
                                   [&](const StepFolder& one) { return !damaged.contains(one.path) && is_good(one, storage); });
  return newest == found.rend() ? std::nullopt : std::optional(*newest);
}

std::vector<StepFolder> prunable(const fs::path& folder, const Retention& retention, const Storage& storage) {
  std::vector<StepFolder> out;
  if (retention.keep < 1) return out;
  auto found = all(folder, storage);
  std::reverse(found.begin(), found.end());
  const auto best = retention.keep_best > 0 ? best_of(found, retention.keep_best, storage) : std::set<int64_t>();
  int64_t good = 0;
  for (const StepFolder& one : found) {
    // Once enough good ones are kept, nothing depends on whether an older one is good.
    const bool enough = good == retention.keep;
    if (!enough) {
      good += is_good(one, storage);
    } else if ((retention.keep_every < 1 || one.step % retention.keep_every != 0) && !best.contains(one.step)) {
      out.push_back(one);
    }
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<StepFolder> prune(const fs::path& folder, const Retention& retention, const Storage& storage) {
  auto candidates = prunable(folder, retention, storage);
  std::erase_if(candidates, [&](const StepFolder& one) { return !remove_unused(one.path, storage); });
  return candidates;
}

bool remove_unused(const fs::path& path, const Storage& storage) {
  const auto lease = storage.hold(path, true);
  if (!lease) return false;
  fs::path hidden = path;
  const std::string name = path.filename();
  if (!name.starts_with('.')) {
    hidden = path.parent_path() / hidden_name(name, to_string(random_id()));
    storage.hide(path, hidden);
  }
  storage.remove_folder(hidden);
  return true;
}

void collect_leftovers(const fs::path& folder, double grace_s, const Storage& storage) {
  const auto entries = storage.list_leftovers(folder);
  const auto is_visible = [&](const std::string& name) {
    return std::any_of(entries.begin(), entries.end(), [&](const FolderEntry& e) { return e.name == name; });
  };
  for (const FolderEntry& entry : entries) {
    const std::string visible = visible_name_of(entry.name);
    const bool was_clock_set_back = entry.age_s < -kMostSkew_s;  // then who holds it has to do
    if (!entry.is_folder || visible.empty() || (entry.age_s < grace_s && !was_clock_set_back)) continue;
    const fs::path path = folder / entry.name;
    if (entry.name == waiting_name(visible) && !is_visible(visible)) {
      base::log_warning("{}: the process that was replacing it died; the old one is back", (folder / visible).string());
      storage.hide(path, folder / visible);
      continue;
    }
    {
      const auto lease = storage.hold(path, true);
      if (!lease || (!lease->certain() && entry.age_s < kUncertainGrace_s)) continue;
    }
    if (remove_unused(path, storage)) base::log_info("removed {}, which a process that died had left behind", path.string());
  }
}

}  // namespace ingot::checkpoint
