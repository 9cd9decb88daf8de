#include "checkpoint/writer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/data_writer.h"

namespace ingot::checkpoint {
namespace {

using base::CheckpointError;

// A contiguous part of an item that becomes one piece of `tensor` (an index into Metadata::tensors).
struct PlannedPiece {
  size_t tensor;
  tensor::Box box;
  const std::byte* data;
};

// Tensors sorted by name, with where each item belongs.
std::map<std::string_view, size_t> plan_tensors(const std::vector<SaveItem>& items, Metadata& metadata) {
  std::map<std::string_view, const SaveItem*> first;
  for (const SaveItem& item : items) {
    const SaveItem* other = first.try_emplace(item.tensor.name, &item).first->second;
    if (other->tensor != item.tensor)
      throw CheckpointError("tensor '{}' is given twice, as {} {} and as {} {}", item.tensor.name, tensor::name_of(other->tensor.dtype),
                            tensor::to_string(other->tensor.shape), tensor::name_of(item.tensor.dtype),
                            tensor::to_string(item.tensor.shape));
  }
  std::map<std::string_view, size_t> place;
  for (const auto& [name, item] : first) {
    place.emplace(name, metadata.tensors.size());
    metadata.tensors.push_back({item->tensor, {}});
  }
  return place;
}

std::vector<PlannedPiece> plan_pieces(const std::vector<SaveItem>& items, const SaveOptions& options, Metadata& metadata) {
  const auto place = plan_tensors(items, metadata);
  std::vector<PlannedPiece> pieces;
  std::vector<std::vector<Box>> boxes(metadata.tensors.size());
  for (const SaveItem& item : items) {
    const size_t tensor = place.at(item.tensor.name);
    if (!tensor::is_inside(item.box, item.tensor.shape))
      throw CheckpointError("tensor '{}' of shape {} is given a part outside of it", item.tensor.name,
                            tensor::to_string(item.tensor.shape));
    const int64_t element_bytes = tensor::size_bytes(item.tensor.dtype);
    const std::byte* data = item.data;
    for (Box& box : cut(item.box, std::max<int64_t>(1, options.piece_limit_bytes / element_bytes))) {
      const int64_t bytes = tensor::element_count(box.extent) * element_bytes;
      boxes[tensor].push_back(box);
      pieces.push_back({tensor, std::move(box), data});
      data += bytes;
    }
  }
  for (size_t i = 0; i < boxes.size(); ++i) {
    const auto& tensor = metadata.tensors[i].tensor;
    const std::string fault = why_not_tiled(tensor.shape, boxes[i]);
    if (!fault.empty()) throw CheckpointError("tensor '{}' cannot be saved: {}", tensor.name, fault);
  }
  return pieces;
}

class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// The hidden folder of one save; removes it unless the save was committed.
class HiddenFolder {
 public:
  HiddenFolder(const Storage& storage, fs::path path) : storage_(storage), path_(std::move(path)) {
    try {
      storage_.make_folder(path_);
      lease_ = storage_.hold(path_, false);
    } catch (...) {
      remove();
      throw;
    }
  }
  HiddenFolder(const HiddenFolder&) = delete;
  HiddenFolder& operator=(const HiddenFolder&) = delete;
  ~HiddenFolder() {
    if (!committed_) remove();
  }
  const fs::path& path() const { return path_; }
  void commit(const fs::path& target) {
    replaced_ = storage_.publish(path_, target);
    committed_ = true;
  }
  /// True when a former checkpoint of the same name now lies in the hidden folder.
  bool replaced() const { return replaced_; }

 private:
  void remove() noexcept {
    try {
      storage_.remove_folder(path_);
    } catch (const std::exception& failure) {
      base::log_warning("an unfinished checkpoint is left behind until the next save: {}", failure.what());
    }
  }
  const Storage& storage_;
  fs::path path_;
  std::unique_ptr<Lease> lease_;
  bool committed_ = false, replaced_ = false;
};

template <class Function>
void log_failures(const char* what, Function&& function) {
  try {
    function();
  } catch (const base::Error& failure) {
    base::log_warning("{}: {}", what, failure.what());
  }
}

}  // namespace

SaveItem whole_item(tensor::LogicalTensor tensor, const void* data) {
  tensor::Box box = tensor::whole(tensor.shape);
  return {std::move(tensor), std::move(box), static_cast<const std::byte*>(data)};
}

SaveReport save(const fs::path& folder, int64_t step, const std::vector<SaveItem>& items, const std::map<std::string, std::string>& extras,
                const SaveOptions& options) {
  const Storage& storage = options.storage ? *options.storage : local_storage();
  const fs::path target = folder / step_name(step);
  SaveReport report{target, options.id.value_or(random_id())};
  Stopwatch watch;
  Metadata metadata{report.id, step, {}, {}, {}};
  const auto pieces = plan_pieces(items, options, metadata);
  storage.make_folder(folder);
  log_failures("looking for leftovers of earlier saves", [&] { collect_leftovers(folder, options.grace_s, storage); });
  report.plan_s = watch.lap();

  HiddenFolder hidden(storage, folder / hidden_name(step_name(step), to_string(report.id)));
  DataWriter data(storage, hidden.path(), report.id, step, 0);
  for (const PlannedPiece& piece : pieces) {
    TensorRecord& record = metadata.tensors[piece.tensor];
    record.pieces.push_back(data.add_piece(record.tensor, piece.box, piece.data));
  }
  for (const auto& [name, content] : extras) metadata.extras.push_back(data.add_extra(name, content));
  report.write_s = watch.lap();
  metadata.files.push_back(data.finish());
  report.data_bytes = metadata.files.back().size_bytes;

  validate(metadata, target.string());
  const std::string encoded = encode(metadata);
  report.metadata_bytes = static_cast<int64_t>(encoded.size());
  const auto sink = storage.create(hidden.path() / kMetadataName);
  sink->write(encoded.data(), report.metadata_bytes);
  sink->finish();
  report.sync_s = watch.lap();
  hidden.commit(target);
  report.commit_s = watch.lap();

  if (hidden.replaced()) log_failures("removing the checkpoint that was replaced", [&] { remove_unused(hidden.path(), storage); });
  log_failures("removing old checkpoints", [&] { prune(folder, options.retention, storage); });
  report.clean_s = watch.lap();
  return report;
}

}  // namespace ingot::checkpoint
