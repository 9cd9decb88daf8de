#include "checkpoint/load/tensor_source.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "checkpoint/format/boxes.h"
#include "checkpoint/storage/folder.h"

namespace ingot::checkpoint {
namespace {

using base::CheckpointError;

class IngotSource : public TensorSource {
 public:
  IngotSource(const fs::path& path, const Storage& storage) : reader_(path, {.storage = &storage}) {}
  std::vector<tensor::LogicalTensor> list() const override { return reader_.list(); }
  void read_run(const tensor::LogicalTensor& tensor, const tensor::Box& box, std::byte* destination) const override {
    reader_.read(tensor.name, box, destination);
  }
  const Reader* reader() const override { return &reader_; }
  const fs::path& path() const override { return reader_.path(); }

 private:
  Reader reader_;
};

class HuggingFaceSource : public TensorSource {
 public:
  explicit HuggingFaceSource(const fs::path& path) : path_(path), reader_(path) {}
  std::vector<tensor::LogicalTensor> list() const override { return reader_.tensors(); }
  void read_run(const tensor::LogicalTensor& tensor, const tensor::Box& box, std::byte* destination) const override {
    const int64_t element_bytes = tensor::size_bytes(tensor.dtype), first = first_element(tensor::whole(tensor.shape), box);
    std::memcpy(destination, reader_.bytes(tensor.name).data() + first * element_bytes,
                static_cast<size_t>(tensor::element_count(box.extent) * element_bytes));
  }
  const SafetensorsReader* safetensors() const override { return &reader_; }
  const fs::path& path() const override { return path_; }

 private:
  fs::path path_;
  SafetensorsReader reader_;
};

bool is_local(const Storage& storage) { return &storage == &local_storage(); }

bool exists(const fs::path& path, const char* name, const Storage& storage) {
  std::error_code ignored;
  if (is_local(storage)) return fs::exists(path / name, ignored);
  const auto entries = storage.list(path);
  return std::any_of(entries.begin(), entries.end(), [&](const FolderEntry& entry) { return entry.name == name; });
}

}  // namespace

fs::path resolve_folder(const fs::path& path, const Storage& storage) {
  std::error_code ignored;
  if (is_local(storage) && !fs::is_directory(path, ignored))
    throw CheckpointError("{} is not a folder; name a checkpoint, a folder of checkpoints or a run directory", path.string());
  return all(path, storage).empty() && exists(path, "checkpoints", storage) ? path / "checkpoints" : path;
}

fs::path resolve_checkpoint(const fs::path& path, const Storage& storage) {
  if (exists(path, kMetadataName, storage)) return path;
  const fs::path folder = resolve_folder(path, storage);
  const auto newest = latest(folder, storage);
  if (newest) return newest->path;
  if (all(folder, storage).empty())
    throw CheckpointError("{} holds no checkpoint: neither {} nor folders called step_…", path.string(), kMetadataName);
  throw CheckpointError("{} holds checkpoints, but none of them is complete; `ingot checkpoint verify` says what is damaged",
                        path.string());
}

std::unique_ptr<TensorSource> open_tensors(const fs::path& path, const Storage& storage) {
  std::error_code ignored;
  if (is_local(storage) && (fs::is_regular_file(path, ignored) || exists(path, "model.safetensors", storage) ||
                            exists(path, "model.safetensors.index.json", storage)))
    return std::make_unique<HuggingFaceSource>(path);
  return std::make_unique<IngotSource>(resolve_checkpoint(path, storage), storage);
}

}  // namespace ingot::checkpoint
