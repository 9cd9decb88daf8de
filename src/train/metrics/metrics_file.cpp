#include "train/metrics/metrics_file.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"

namespace ingot::train {
namespace {

// Longer lines are none of ours; parsing them could cost any amount of memory.
constexpr size_t kMaxLineBytes = size_t{1} << 20;

std::optional<int64_t> step_of(std::string_view line) {
  if (line.size() > kMaxLineBytes) return std::nullopt;
  const auto parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return std::nullopt;
  const auto step = parsed.find("step");
  if (step == parsed.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<int64_t>();
}

// The length of the part to keep. Steps ascend, so lines are read from the end until one is not later than `resumed_step`;
// an unreadable line is kept or cut with its neighbours.
size_t kept_bytes(std::string_view content, int64_t resumed_step) {
  if (resumed_step <= 0) return 0;
  size_t keep = content.rfind('\n') + 1;  // npos + 1 is 0
  for (size_t end = keep; end > 0;) {
    const size_t begin = end >= 2 ? content.rfind('\n', end - 2) + 1 : 0;
    const auto step = step_of(content.substr(begin, end - 1 - begin));
    if (step && *step <= resumed_step) break;
    if (step) keep = begin;
    end = begin;
  }
  return keep;
}

// The steps of a run that begins anew in the same directory, having saved nothing, are kept beside it.
const std::filesystem::path& with_earlier_steps_aside(const std::filesystem::path& path, int64_t resumed_step) {
  std::error_code ignored;
  if (resumed_step > 0 || !std::filesystem::is_regular_file(path, ignored) || std::filesystem::file_size(path, ignored) == 0) return path;
  const auto aside = std::filesystem::path(path).replace_extension("before.jsonl");
  std::filesystem::rename(path, aside, ignored);
  if (!ignored)
    base::log_info("this run begins at step 1; those that were done here before, of which none is saved, are in {}", aside.string());
  return path;
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t resumed_step)
    : file_(with_earlier_steps_aside(path, resumed_step), AppendFile::Mode::append) {
  size_t keep = 0;
  {
    const base::MappedFile mapped(path);
    keep = kept_bytes({reinterpret_cast<const char*>(mapped.data()), static_cast<size_t>(mapped.size_bytes())}, resumed_step);
  }
  dropped_bytes_ = file_.size_bytes() - static_cast<int64_t>(keep);
  if (dropped_bytes_ > 0) file_.truncate(static_cast<int64_t>(keep));
}

void MetricsFile::append(const nlohmann::ordered_json& line) {
  // Numbers are printed with the fewest digits that read back as the same double.
  file_.append(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace ingot::train
