#include "checkpoint/commands.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/load/tensor_source.h"
#include "checkpoint/load/verify.h"
#include "checkpoint/safetensors/archive.h"
#include "checkpoint/save/writer.h"

namespace ingot::checkpoint {
namespace {

using nlohmann::ordered_json;

// Names come from files: bytes that are not UTF-8 are replaced rather than refused.
void print(const ordered_json& document, std::ostream& out) {
  out << document.dump(2, ' ', false, ordered_json::error_handler_t::replace) << '\n';
}

int64_t bytes_of(const tensor::LogicalTensor& tensor) { return tensor::element_count(tensor.shape) * tensor::size_bytes(tensor.dtype); }

ordered_json json_of(const tensor::LogicalTensor& tensor) {
  return {{"name", tensor.name}, {"dtype", tensor::name_of(tensor.dtype)}, {"shape", tensor.shape}, {"bytes", bytes_of(tensor)}};
}

struct Total {
  int64_t tensors = 0, elements = 0, bytes = 0;
};

std::map<std::string_view, Total> totals_by_dtype(const std::vector<tensor::LogicalTensor>& tensors) {
  std::map<std::string_view, Total> totals;
  for (const auto& tensor : tensors) {
    Total& total = totals[tensor::name_of(tensor.dtype)];
    ++total.tensors;
    total.elements += tensor::element_count(tensor.shape);
    total.bytes += bytes_of(tensor);
  }
  return totals;
}

ordered_json inspect_json(const TensorSource& source, const std::vector<tensor::LogicalTensor>& tensors) {
  ordered_json document = {{"format", source.reader() ? "ingot" : "safetensors"}, {"path", source.path().string()}};
  if (const Reader* reader = source.reader()) {
    const Metadata& metadata = reader->metadata();
    document["version"] = kFormatVersion;
    document["id"] = to_string(metadata.id);
    document["step"] = metadata.step;
    for (const FileRecord& file : metadata.files) document["files"].push_back({{"name", file.name}, {"bytes", file.size_bytes}});
    document["extras"] = ordered_json::array();
    for (const ExtraRecord& extra : metadata.extras) document["extras"].push_back({{"name", extra.name}, {"bytes", extra.size_bytes}});
  } else {
    document["metadata"] = source.safetensors()->metadata();
  }
  document["tensors"] = ordered_json::array();
  for (size_t i = 0; i < tensors.size(); ++i) {
    document["tensors"].push_back(json_of(tensors[i]));
    if (source.reader()) document["tensors"].back()["pieces"] = source.reader()->metadata().tensors[i].pieces.size();
  }
  for (const auto& [dtype, total] : totals_by_dtype(tensors))
    document["totals"][std::string(dtype)] = {{"tensors", total.tensors}, {"elements", total.elements}, {"bytes", total.bytes}};
  return document;
}

void inspect_text(const TensorSource& source, const std::vector<tensor::LogicalTensor>& tensors, std::ostream& out) {
  out << source.path().string() << '\n';
  if (const Reader* reader = source.reader()) {
    const Metadata& metadata = reader->metadata();
    out << fmt::format("ingot checkpoint, format {}, step {}, id {}, {} data file(s)\n", kFormatVersion, metadata.step,
                       to_string(metadata.id), metadata.files.size());
    for (const ExtraRecord& extra : metadata.extras)
      out << fmt::format("  extra {:<28} {:>10}\n", extra.name, base::format_bytes(extra.size_bytes));
  } else {
    out << "safetensors\n";
    for (const auto& [key, value] : source.safetensors()->metadata()) out << fmt::format("  {} = {}\n", key, value);
  }
  for (const auto& [dtype, total] : totals_by_dtype(tensors)) {
    out << fmt::format("  {:<10} {:>6} tensors {:>10} elements {:>10}\n", dtype, total.tensors,
                       base::format_count(static_cast<double>(total.elements)), base::format_bytes(total.bytes));
  }
  size_t width = 4;
  for (const auto& tensor : tensors) width = std::max(width, tensor.name.size());
  out << fmt::format("\n{:<{}}  {:<10} {:>10}  shape\n", "name", width, "dtype", "bytes");
  for (const auto& tensor : tensors)
    out << fmt::format("{:<{}}  {:<10} {:>10}  {}\n", tensor.name, width, tensor::name_of(tensor.dtype),
                       base::format_bytes(bytes_of(tensor)), tensor::to_string(tensor.shape));
}

ordered_json json_of(const fs::path& path, const VerifySummary& summary) {
  ordered_json damage = ordered_json::array();
  for (const Damage& one : summary.damage) {
    ordered_json entry = {{"file", one.file}, {"description", one.description}};
    if (!one.tensor.empty()) entry["tensor"] = one.tensor;
    if (!one.extra.empty()) entry["extra"] = one.extra;
    damage.push_back(std::move(entry));
  }
  return {{"path", path.string()},      {"sound", summary.sound()}, {"step", summary.step},     {"files", summary.files},
          {"tensors", summary.tensors}, {"pieces", summary.pieces}, {"extras", summary.extras}, {"checked_bytes", summary.checked_bytes},
          {"seconds", summary.seconds}, {"damage", damage}};
}

void print_text(const fs::path& path, const VerifySummary& summary, std::ostream& out) {
  if (summary.sound()) {
    out << fmt::format("{}: sound ({} tensors, {} pieces, {} in {:.2f} s)\n", path.string(), summary.tensors, summary.pieces,
                       base::format_bytes(summary.checked_bytes), summary.seconds);
    return;
  }
  out << fmt::format("{}: DAMAGED\n", path.string());
  constexpr size_t kShown = 12;  // a file that was cut damages every tensor behind the cut
  for (size_t i = 0; i < std::min(kShown, summary.damage.size()); ++i) out << "  " << summary.damage[i].description << '\n';
  if (summary.damage.size() > kShown) out << fmt::format("  and {} more; --json lists all\n", summary.damage.size() - kShown);
}

}  // namespace

int inspect(const InspectOptions& options, std::ostream& out) {
  const auto source = open_tensors(options.path, *options.storage);
  if (!options.extra.empty()) {
    if (!source->reader()) throw base::CheckpointError("{} is not an ingot checkpoint and has no extra state", options.path.string());
    out << source->reader()->extra(options.extra);
    return 0;
  }
  const auto tensors = source->list();
  if (options.json) {
    print(inspect_json(*source, tensors), out);
  } else {
    inspect_text(*source, tensors, out);
  }
  return 0;
}

namespace {

int verify_file(const VerifyOptions& options, std::ostream& out) {
  const VerifySummary summary = verify_archive(options.path);
  if (!options.json) print_text(options.path, summary, out);
  else print({{"sound", summary.sound()}, {"checkpoints", {json_of(options.path, summary)}}}, out);
  return summary.sound() ? 0 : 3;
}

}  // namespace

int verify(const VerifyOptions& options, std::ostream& out) {
  const Storage& storage = *options.storage;
  std::error_code none;
  if (&storage == &local_storage() && fs::is_regular_file(options.path, none)) return verify_file(options, out);
  std::vector<fs::path> paths;
  for (const StepFolder& one : all(resolve_folder(options.path, storage), storage)) paths.push_back(one.path);
  if (paths.empty()) {
    // A folder that is or was a checkpoint is verified, however damaged; any other is a wrong argument.
    std::error_code ignored;
    const bool named_as_one = fs::path(options.path / "").parent_path().filename().string().starts_with("step_");
    paths.push_back(named_as_one || fs::exists(options.path / kMetadataName, ignored) ? options.path
                                                                                      : resolve_checkpoint(options.path, storage));
  }
  ordered_json checkpoints = ordered_json::array();
  bool sound = true;
  for (const fs::path& path : paths) {
    const VerifySummary summary = verify(path, storage);
    sound = sound && summary.sound();
    checkpoints.push_back(json_of(path, summary));
    if (!options.json) print_text(path, summary, out);
  }
  if (options.json) print({{"sound", sound}, {"checkpoints", checkpoints}}, out);
  return sound ? 0 : 3;
}

int prune(const PruneOptions& options, std::ostream& out) {
  const Storage& storage = *options.storage;
  const fs::path folder = resolve_folder(options.path, storage);
  if (options.retention.keep < 1) throw base::UsageError("keeping {} checkpoints is not possible; at least 1", options.retention.keep);
  if (all(folder, storage).empty()) throw base::CheckpointError("{} holds no folders called step_…", folder.string());
  if (!options.dry_run) collect_leftovers(folder, SaveOptions{}.grace_s, storage);
  const auto removed = options.dry_run ? prunable(folder, options.retention, storage) : prune(folder, options.retention, storage);
  ordered_json document = {{"dry_run", options.dry_run}, {"removed", ordered_json::array()}, {"kept", ordered_json::array()}};
  for (const StepFolder& one : removed) {
    document["removed"].push_back(one.path.string());
    if (!options.json) out << fmt::format("{} {}\n", options.dry_run ? "would remove" : "removed", one.path.string());
  }
  for (const StepFolder& one : all(folder, storage)) {
    if (std::find(removed.begin(), removed.end(), one) != removed.end()) continue;
    document["kept"].push_back(one.path.string());
    if (!options.json) out << fmt::format("kept {}\n", one.path.string());
  }
  if (options.json) print(document, out);
  return 0;
}

}  // namespace ingot::checkpoint
