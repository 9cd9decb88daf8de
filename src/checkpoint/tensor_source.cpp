#include "checkpoint/tensor_source.h"

#include <cstring>

#include "base/error.h"
#include "checkpoint/boxes.h"
#include "checkpoint/folder.h"

namespace ingot::checkpoint {
namespace {

using base::CheckpointError;

class IngotSource : public TensorSource {
 public:
  explicit IngotSource(const fs::path& path) : reader_(path) {}
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

bool exists(const fs::path& path, const char* name) {
  std::error_code ignored;
  return fs::exists(path / name, ignored);
}

}  // namespace

fs::path resolve_folder(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored))
    throw CheckpointError("{} is not a folder; name a checkpoint, a folder of checkpoints or a run directory", path.string());
  return all(path).empty() && exists(path, "checkpoints") ? path / "checkpoints" : path;
}

fs::path resolve_checkpoint(const fs::path& path) {
  if (exists(path, kMetadataName)) return path;
  const fs::path folder = resolve_folder(path);
  const auto newest = latest(folder);
  if (newest) return newest->path;
  if (all(folder).empty())
    throw CheckpointError("{} holds no checkpoint: neither {} nor folders called step_…", path.string(), kMetadataName);
  throw CheckpointError("{} holds checkpoints, but none of them is complete; `ingot checkpoint verify` says what is damaged",
                        path.string());
}

std::unique_ptr<TensorSource> open_tensors(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored) || exists(path, "model.safetensors") || exists(path, "model.safetensors.index.json"))
    return std::make_unique<HuggingFaceSource>(path);
  return std::make_unique<IngotSource>(resolve_checkpoint(path));
}

}  // namespace ingot::checkpoint
