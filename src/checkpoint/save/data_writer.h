// Writes one data file of a checkpoint: a header, then pieces and extras, each aligned and with its checksum. One writer
// per file; several files of one checkpoint may be written at once by several threads or processes.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/format/metadata.h"
#include "checkpoint/storage/storage.h"

namespace ingot::checkpoint {

class DataWriter {
 public:
  /// Creates the file `name`, "" = `data_<file>.bin`, in the folder. The storage must outlive the writer.
  DataWriter(const Storage& storage, const fs::path& folder, const CheckpointId& id, int64_t step, uint32_t file,
             const std::string& name = "");

  /// `data` holds the row-major elements of `box`, read before this returns.
  PieceRecord add_piece(const tensor::LogicalTensor& tensor, tensor::Box box, const std::byte* data);
  ExtraRecord add_extra(const std::string& name, std::string_view content);
  /// Makes the file durable.
  FileRecord finish();

 private:
  int64_t append(const void* data, int64_t size_bytes, Digest& digest);

  uint32_t file_;
  std::string name_;
  std::unique_ptr<Sink> sink_;
  int64_t end_ = 0;
};

}  // namespace ingot::checkpoint
