#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/format/boxes.h"
#include "interchange/dcp.h"

namespace ingot::interchange {
namespace {

using base::CheckpointError;
using tensor::Box;

// Writes archives one after the other into data files of bounded size, and removes them unless the checkpoint was completed.
class DataFiles {
 public:
  DataFiles(const checkpoint::Storage& storage, fs::path folder, int64_t limit_bytes)
      : storage_(storage), folder_(std::move(folder)), limit_bytes_(limit_bytes) {}
  DataFiles(const DataFiles&) = delete;
  DataFiles& operator=(const DataFiles&) = delete;
  ~DataFiles() {
    if (complete_) return;
    std::error_code ignored;
    fs::remove(folder_ / kDcpMetadataName, ignored);  // there only if making its name durable failed
    for (const std::string& name : names_) fs::remove(folder_ / name, ignored);
  }

  /// `write` is given where to write and returns the number of bytes.
  template <class Write>
  DcpPlace add(Write&& write) {
    if (!sink_) open();
    const DcpPlace place{static_cast<uint32_t>(names_.size() - 1), end_, 0};
    const int64_t bytes = write([this](const void* data, int64_t size_bytes) { sink_->write(data, size_bytes); });
    end_ += bytes;
    if (end_ >= limit_bytes_) finish();
    return {place.file, place.offset, bytes};
  }

  void finish() {
    if (sink_) sink_->finish();
    sink_ = nullptr;
  }
  void keep() { complete_ = true; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  void open() {
    const std::string name = fmt::format("__0_{}.distcp", names_.size());
    sink_ = storage_.create(folder_ / name);
    names_.push_back(name);
    end_ = 0;
  }
  const checkpoint::Storage& storage_;
  fs::path folder_;
  int64_t limit_bytes_, end_ = 0;
  std::vector<std::string> names_;
  std::unique_ptr<checkpoint::Sink> sink_;
  bool complete_ = false;
};

void check_names(const std::vector<tensor::LogicalTensor>& tensors, const std::map<std::string, std::string>& objects) {
  std::set<std::string_view> names;
  for (const auto& tensor : tensors) {
    if (tensor.name.empty() || !names.insert(tensor.name).second)
      throw CheckpointError("the tensor name '{}' is empty or used twice; a checkpoint cannot be written", tensor.name);
  }
  for (const auto& [name, content] : objects) {
    if (name.empty() || !names.insert(name).second)
      throw CheckpointError("the name '{}' of an object is empty or also that of a tensor; a checkpoint cannot be written", name);
  }
}

}  // namespace

void write_dcp(const fs::path& folder, const std::vector<tensor::LogicalTensor>& tensors, const DcpFill& fill,
               const std::map<std::string, std::string>& objects, const DcpWriteOptions& options) {
  constexpr int64_t kChunkLimitBytes = int64_t{1} << 40;
  if (options.chunk_limit_bytes < 1 || options.chunk_limit_bytes > kChunkLimitBytes || options.file_limit_bytes < 1)
    throw CheckpointError("chunks of {} and files of {} bytes are not possible", options.chunk_limit_bytes, options.file_limit_bytes);
  check_names(tensors, objects);
  const checkpoint::Storage& storage = options.storage ? *options.storage : checkpoint::local_storage();
  storage.make_folder(folder);
  if (!storage.list(folder).empty())
    throw CheckpointError("{} is not empty; a DCP checkpoint is written into a folder of its own", folder.string());

  DataFiles data(storage, folder, options.file_limit_bytes);
  DcpMetadata metadata;
  std::vector<DcpPlace> hollow;
  std::vector<std::byte> buffer;
  for (const tensor::LogicalTensor& tensor : tensors) {
    DcpTensorRecord record{tensor, {}};
    const int64_t width = tensor::size_bytes(tensor.dtype);
    for (Box& box : checkpoint::cut(tensor::whole(tensor.shape), std::max<int64_t>(1, options.chunk_limit_bytes / width))) {
      buffer.resize(static_cast<size_t>(tensor::element_count(box.extent) * width));
      fill(tensor, box, buffer.data());
      const DcpPlace place =
          data.add([&](const ZipWriter::Out& out) { return write_torch_tensor(out, tensor.dtype, box.extent, buffer.data()); });
      record.chunks.push_back({std::move(box), place});
    }
    if (record.chunks.empty())
      hollow.push_back(data.add([&](const ZipWriter::Out& out) { return write_torch_tensor(out, tensor.dtype, tensor.shape, nullptr); }));
    metadata.tensors.push_back(std::move(record));
  }
  for (const auto& [name, content] : objects)
    metadata.objects.push_back({name, data.add([&](const ZipWriter::Out& out) { return write_torch_text(out, content); })});
  data.finish();
  metadata.files = data.names();
  // Now that all data is durable the checkpoint may be seen.
  base::sync_directory(folder);
  base::write_file_atomically(folder / kDcpMetadataName, encode_dcp(metadata, hollow));
  data.keep();
}

}  // namespace ingot::interchange
