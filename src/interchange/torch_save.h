// What torch.save writes: a zip archive with one pickle, `data.pkl`, and one entry per storage, `data/0`. Reads the pickle as
// data and finds the bytes of tensors in it; writes archives of one tensor or one text, as a checkpoint's files are made of.
// Source: torch/serialization.py and torch/_utils.py of torch 2.11. A TorchArchive may be used by many threads.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "interchange/pickle.h"
#include "interchange/zip.h"
#include "tensor/logical_tensor.h"

namespace ingot::interchange {

/// "bfloat16" for bf16 and so on: the names within the module `torch`.
std::string_view torch_name(tensor::DType dtype);
std::optional<tensor::DType> dtype_from_torch(std::string_view name);
/// The dtype that a pickle's `torch.float32` stands for; nothing for one that ingot has not.
std::optional<tensor::DType> dtype_of(const PickleValue& value);
/// torch.Size, a tuple or a list of integers, none of them negative. Throws CheckpointError.
tensor::Shape shape_of(const PickleValue& value);

/// A tensor within an archive: its elements lie in one entry, element [i, j, …] at element begin + i·stride[0] + j·stride[1] + ….
struct StoredTensor {
  tensor::DType dtype = tensor::DType::fp32;
  tensor::Shape shape;
  std::vector<int64_t> stride;  // in elements, none negative
  int64_t begin = 0;            // in elements
  size_t entry = 0;             // index into ZipReader::entries()
  int64_t data_offset = 0;      // of the entry's bytes within the archive
};

class TorchArchive {
 public:
  /// `name` is what messages call it. Without `check_crc` nothing is compared with its CRC.
  explicit TorchArchive(FileView view, bool check_crc = true);

  const ZipReader& zip() const { return zip_; }
  PickleValue root() const { return pickle_->root(); }
  static bool is_tensor(const PickleValue& value);
  /// Throws CheckpointError unless all its elements lie within its storage, each its own (no strides of 0).
  StoredTensor tensor(const PickleValue& value) const;

 private:
  const ZipEntry* entry(const std::string& name) const { return zip_.find(prefix_ + name); }
  ZipReader zip_;
  std::string prefix_;  // "archive/"
  std::unique_ptr<const Pickle> pickle_;
};

/// The text or bytes that a value is; nothing for other kinds.
std::optional<std::string> content_of(const PickleValue& value);

/// Writes an archive that torch.load reads as a tensor of these row-major elements. Returns its size in bytes.
int64_t write_torch_tensor(const ZipWriter::Out& out, tensor::DType dtype, const tensor::Shape& shape, const std::byte* data,
                           bool zip64 = false);
/// The same for a str, or bytes when the content is not UTF-8.
int64_t write_torch_text(const ZipWriter::Out& out, std::string_view content);

}  // namespace ingot::interchange
