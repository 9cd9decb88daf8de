// One view of the places where tensors lie: an ingot checkpoint, a Hugging Face folder or a .safetensors file.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "checkpoint/load/reader.h"
#include "checkpoint/safetensors/safetensors.h"

namespace ingot::checkpoint {

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  /// Sorted by name.
  virtual std::vector<tensor::LogicalTensor> list() const = 0;
  /// Reads `box`, whose elements are one run of the row-major tensor.
  virtual void read_run(const tensor::LogicalTensor& tensor, const tensor::Box& box, std::byte* destination) const = 0;
  /// The ingot checkpoint behind this, if it is one; else the files of Hugging Face.
  virtual const Reader* reader() const { return nullptr; }
  virtual const SafetensorsReader* safetensors() const { return nullptr; }
  virtual const fs::path& path() const = 0;
};

/// `path` may be a checkpoint, a folder of checkpoints or a run directory (their newest complete one is taken), a folder
/// with model.safetensors or its index, or a .safetensors file. Throws CheckpointError saying what was looked for.
std::unique_ptr<TensorSource> open_tensors(const fs::path& path, const Storage& storage = local_storage());

/// The checkpoint that `path` stands for: itself, or the newest complete one in it or in its `checkpoints`.
fs::path resolve_checkpoint(const fs::path& path, const Storage& storage = local_storage());

/// The folder of checkpoints that `path` stands for: itself, or its `checkpoints`.
fs::path resolve_folder(const fs::path& path, const Storage& storage = local_storage());

}  // namespace ingot::checkpoint
