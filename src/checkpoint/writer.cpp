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
  for (const SaveItem& item : items) {
    const size_t tensor = place.at(item.tensor.name);
    if (!tensor::is_inside(item.box, item.tensor.shape))
      throw CheckpointError("tensor '{}' of shape {} is given a part outside of it", item.tensor.name,
                            tensor::to_string(item.tensor.shape));
    const int64_t element_bytes = tensor::size_bytes(item.tensor.dtype);
    const std::byte* data = item.data;
    for (Box& box : cut(item.box, std::max<int64_t>(1, options.piece_limit_bytes / element_bytes))) {
      const int64_t bytes = tensor::element_count(box.extent) * element_bytes;
      pieces.push_back({tensor, std::move(box), data});
      data += bytes;
    }
  }
  return pieces;
}

// Found out before anything is written where one rank has everything; else `validate` says it of what all have written.
void check_tiles(const std::vector<PlannedPiece>& pieces, const Metadata& metadata) {
  std::vector<std::vector<Box>> boxes(metadata.tensors.size());
  for (const auto& piece : pieces) boxes[piece.tensor].push_back(piece.box);
  for (size_t i = 0; i < boxes.size(); ++i) {
    const auto& tensor = metadata.tensors[i].tensor;
    const std::string fault = why_not_tiled(tensor.shape, boxes[i]);
    if (!fault.empty()) throw CheckpointError("tensor '{}' cannot be saved: {}", tensor.name, fault);
  }
}

// What all ranks have written, as one.
Metadata merged(const std::vector<std::string>& parts, const CheckpointId& id, int64_t step) {
  Metadata all{id, step, {}, {}, {}};
  std::map<std::string, TensorRecord> tensors;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    Metadata part = decode_part(parts[rank], fmt::format("the report of rank {}", rank));
    const auto file = static_cast<uint32_t>(all.files.size());
    all.files.push_back(part.files.at(0));
    for (auto& record : part.tensors) {
      auto& whole = tensors.try_emplace(record.tensor.name, TensorRecord{record.tensor, {}}).first->second;
      if (whole.tensor != record.tensor)
        throw CheckpointError("tensor '{}' of rank {} has {} {}, another rank's {} {}", record.tensor.name, rank,
                              tensor::name_of(record.tensor.dtype), tensor::to_string(record.tensor.shape),
                              tensor::name_of(whole.tensor.dtype), tensor::to_string(whole.tensor.shape));
      for (auto& piece : record.pieces) {
        piece.file = file;
        whole.pieces.push_back(std::move(piece));
      }
    }
    for (auto& extra : part.extras) {
      extra.file = file;
      all.extras.push_back(std::move(extra));
    }
  }
  for (auto& [name, record] : tensors) all.tensors.push_back(std::move(record));
  return all;
}

CheckpointId id_from(const std::string& text) {
  return {std::stoull(text.substr(16), nullptr, 16), std::stoull(text.substr(0, 16), nullptr, 16)};
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
  const Team& team = options.team ? *options.team : alone();
  const fs::path target = folder / step_name(step);
  SaveReport report{target, {}};
  Stopwatch watch;
  Metadata part{{}, step, {}, {}, {}};  // what this rank writes
  std::vector<PlannedPiece> pieces;
  std::optional<HiddenFolder> hidden;  // on rank 0
  const std::string id = on_first(team, [&] {
    pieces = plan_pieces(items, options, part);
    if (team.size() == 1) check_tiles(pieces, part);
    const auto chosen = to_string(options.id.value_or(random_id()));
    storage.make_folder(folder);
    log_failures("looking for leftovers of earlier saves", [&] { collect_leftovers(folder, options.grace_s, storage); });
    report.plan_s = watch.lap();
    hidden.emplace(storage, folder / hidden_name(step_name(step), chosen));
    return chosen;
  });
  report.id = part.id = id_from(id);

  const auto write_part = [&] {
    if (team.rank() != 0) pieces = plan_pieces(items, options, part);
    DataWriter data(storage, folder / hidden_name(step_name(step), id), part.id, step, static_cast<uint32_t>(team.rank()));
    for (const PlannedPiece& piece : pieces) {
      TensorRecord& record = part.tensors[piece.tensor];
      record.pieces.push_back(data.add_piece(record.tensor, piece.box, piece.data));
      record.pieces.back().file = 0;  // the only one of this part
    }
    if (team.rank() == 0)
      for (const auto& [name, content] : extras) part.extras.push_back(data.add_extra(name, content));
    report.write_s = watch.lap();
    part.files.push_back(data.finish());
    return team.size() == 1 ? std::string() : encode(part);
  };
  // What on_each throws on rank 0 reaches the others through the on_first that follows.
  std::vector<std::string> parts;
  std::exception_ptr failure;
  try {
    parts = on_each(team, write_part);
  } catch (const CheckpointError&) {
    failure = std::current_exception();
  }

  on_first(team, [&] {
    if (failure) std::rethrow_exception(failure);
    const Metadata metadata = team.size() == 1 ? std::move(part) : merged(parts, part.id, step);
    for (const auto& file : metadata.files) report.data_bytes += file.size_bytes;
    validate(metadata, target.string());
    const std::string encoded = encode(metadata);
    report.metadata_bytes = static_cast<int64_t>(encoded.size());
    const auto sink = storage.create(hidden->path() / kMetadataName);
    sink->write(encoded.data(), report.metadata_bytes);
    sink->finish();
    report.sync_s = watch.lap();
    hidden->commit(target);
    report.commit_s = watch.lap();
    if (hidden->replaced()) log_failures("removing the checkpoint that was replaced", [&] { remove_unused(hidden->path(), storage); });
    log_failures("removing old checkpoints", [&] { prune(folder, options.retention, storage); });
    report.clean_s = watch.lap();
    return std::string();
  });
  return report;
}

}  // namespace ingot::checkpoint
