// Checkpoints of PyTorch's torch.distributed.checkpoint ("DCP"): a folder with `.metadata` (a pickle: which tensors, cut into
// which chunks) and data files `__<rank>_<n>.distcp` (archives of torch.save, one after the other, one per chunk). Megatron-Core's
// `torch_dist` is the same folder with `common.pt` (what is no tensor of a shard) and `metadata.json`.
// Read without Python and without executing anything; written so that torch.distributed.checkpoint loads it.
//
// Many threads may read from one DcpReader. All faults are CheckpointErrors that name file, byte or tensor.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/load/reader.h"
#include "checkpoint/load/tensor_source.h"
#include "checkpoint/storage/storage.h"
#include "interchange/dcp_metadata.h"
#include "interchange/torch_save.h"

namespace ingot::interchange {

namespace fs = std::filesystem;

/// DCP has no checksums but the CRC-32 that torch.save gives each chunk, which only the whole chunk can be compared with.
enum class Crc {
  ignore,      // for checkpoints saved with torch.serialization.set_crc32_options(False)
  when_whole,  // compare what one read takes whole; the rest is trusted
  always       // read each chunk whole, once, before the first part of it is handed out
};

struct DcpOptions {
  Crc crc = Crc::when_whole;
  const checkpoint::Storage* storage = nullptr;  // the local file system unless given; must outlive the reader
};

class DcpReader {
 public:
  /// Reads the metadata and checks that the chunks of each tensor make it up exactly and that all files are there.
  explicit DcpReader(const fs::path& path, const DcpOptions& options = {});

  const fs::path& path() const { return path_; }
  const DcpMetadata& metadata() const { return metadata_; }

  /// Sorted by name.
  std::vector<tensor::LogicalTensor> list() const;
  bool contains(std::string_view name) const { return places_.contains(name); }
  /// Throws CheckpointError for an unknown name, with the nearest known one.
  const tensor::LogicalTensor& tensor(std::string_view name) const;

  /// Fills `destination` with the row-major elements of `box`. After an exception its content is undefined.
  void read(std::string_view name, const tensor::Box& box, std::byte* destination) const;
  /// The whole tensor.
  std::vector<std::byte> read(std::string_view name) const;

  /// Names of what is no tensor, sorted.
  std::vector<std::string> objects() const;
  /// The pickled value as to_json of pickle.h shows it.
  nlohmann::json object(std::string_view name) const;
  /// What it is when it is a text or bytes.
  std::optional<std::string> object_content(std::string_view name) const;

  /// Reads every chunk and object whole and compares all CRCs; throws at the first fault.
  void verify() const;

  /// Megatron-Core: the value of `common.pt`; null when there is none.
  nlohmann::json megatron_common() const;

  /// `read_bytes` counts whole reads from files but for the small first and last parts of archives.
  checkpoint::ReadCounters counters() const { return {wanted_bytes_.load(), read_bytes_.load()}; }

 private:
  // Where a chunk's elements lie, found out when it is first read.
  struct Opened {
    std::shared_ptr<const checkpoint::Source> source;
    StoredTensor stored;
    int64_t data_begin = 0, entry_bytes = 0;  // of the storage, in the file
    uint32_t crc = 0;
    bool checked = false;  // against the CRC
    bool contiguous = false;
  };
  struct Part;  // of a chunk that is wanted

  const DcpTensorRecord& record(std::string_view name) const;
  const DcpObjectRecord& object_record(std::string_view name) const;
  std::shared_ptr<const checkpoint::Source> source(uint32_t file) const;
  TorchArchive archive(const DcpPlace& place) const;
  Opened open_chunk(const DcpTensorRecord& record, size_t chunk) const;
  void read_part(const Part& part, const tensor::Box& common) const;
  void read_file(const Opened& opened, int64_t offset, std::byte* destination, int64_t size_bytes) const;
  void check_crc(const Part& part, const std::byte* data, int64_t size_bytes) const;
  void check_megatron();

  fs::path path_;
  DcpOptions options_;
  const checkpoint::Storage& storage_;
  DcpMetadata metadata_;
  std::map<std::string_view, size_t> places_;  // names within metadata_.tensors

  mutable std::mutex mutex_;  // guards the three below
  mutable std::map<uint32_t, std::shared_ptr<const checkpoint::Source>> sources_;
  mutable std::map<const DcpChunk*, Opened> opened_;
  mutable std::map<const DcpTensorRecord*, std::pair<std::vector<tensor::Box>, checkpoint::BoxIndex>> indices_;
  mutable std::atomic<int64_t> wanted_bytes_{0}, read_bytes_{0};
};

/// Whether a folder looks like one of DCP: it has `.metadata`.
bool is_dcp(const fs::path& path);

/// The folder as one of the places where tensors lie.
std::unique_ptr<checkpoint::TensorSource> open_dcp(const fs::path& path, const DcpOptions& options = {});

/// Supplies the row-major elements of a box of a tensor.
using DcpFill = std::function<void(const tensor::LogicalTensor& tensor, const tensor::Box& box, std::byte* destination)>;

struct DcpWriteOptions {
  int64_t chunk_limit_bytes = int64_t{64} << 20;  // longer tensors are cut; also what the writer holds in memory
  int64_t file_limit_bytes = int64_t{4} << 30;    // a data file that reaches this is the last but the next
  const checkpoint::Storage* storage = nullptr;   // the local file system unless given
};

/// Writes a checkpoint that torch.distributed.checkpoint.load and FileSystemReader read. The folder must be empty or absent. Data
/// files are durable before `.metadata` appears, by one rename, so a folder with `.metadata` is complete. `objects` become
/// str (or bytes, when they are not UTF-8). On a failure the files that were written are removed. Calls `fill` once per
/// chunk, tensor by tensor in the order given, in boxes that are runs of the row-major tensor.
void write_dcp(const fs::path& folder, const std::vector<tensor::LogicalTensor>& tensors, const DcpFill& fill,
               const std::map<std::string, std::string>& objects = {}, const DcpWriteOptions& options = {});

}  // namespace ingot::interchange
