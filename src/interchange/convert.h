// Checkpoints of PyTorch DCP and Megatron-Core into ingot's and back, tensor by tensor, with memory for one chunk. Each function
// writes a new checkpoint that appears complete or not at all; neither changes what it reads. Throws CheckpointError or FileError.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "interchange/dcp.h"

namespace ingot::interchange {

/// The name a tensor gets; nothing leaves it out. Absent: names stay.
using Rename = std::function<std::optional<std::string>(const std::string& name)>;

/// DCP has only tensors and pickled objects: an ingot checkpoint's extra "x" becomes the object "extra.x".
inline constexpr const char* kExtraPrefix = "extra.";
/// Under which an import keeps, as JSON for people, the objects that it cannot turn into anything else.
inline constexpr const char* kObjectPrefix = "dcp/";

struct ImportOptions {
  int64_t step = 0;  // of the new checkpoint
  Rename rename;
  bool skip_foreign = false;                     // leave out tensors of dtypes that ingot has not, rather than refuse
  Crc crc = Crc::always;                         // the checksums of the new checkpoint vouch for what was read
  int64_t piece_limit_bytes = int64_t{8} << 20;  // also what is held in memory
  const checkpoint::Storage* storage = nullptr;  // the local file system unless given
};

struct ConvertReport {
  fs::path path;  // of the new checkpoint
  int64_t tensors = 0, extras = 0, data_bytes = 0;
  std::vector<std::string> left_out;  // tensors
};

/// Reads the DCP or torch_dist folder `source` and writes `folder/step_<step>`, which must not exist. Objects that export_dcp wrote
/// become extras again; others become extras "dcp/<name>.json", and Megatron's common.pt "dcp/common.json".
ConvertReport import_dcp(const fs::path& source, const fs::path& folder, const ImportOptions& options = {});

struct ExportOptions {
  Rename rename;
  bool extras = true;  // also the extras of an ingot checkpoint
  DcpWriteOptions write;
};

/// Writes the tensors of whatever checkpoint::open_tensors accepts (an ingot checkpoint, a run directory, safetensors) as a DCP
/// checkpoint into `folder`, which must be empty or absent.
ConvertReport export_dcp(const fs::path& source, const fs::path& folder, const ExportOptions& options = {});

}  // namespace ingot::interchange
