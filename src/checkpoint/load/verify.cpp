#include "checkpoint/load/verify.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "base/error.h"
#include "checkpoint/load/reader.h"

namespace ingot::checkpoint {
namespace {

constexpr int64_t kChunkBytes = int64_t{4} << 20;

// Reads a file from front to back: what is asked for, or, where requests wait, as many of them as the storage takes at once.
class FrontToBack {
 public:
  explicit FrontToBack(const Storage& storage)
      : ahead_bytes_(storage.is_cached() ? 0 : storage.reading().request_bytes * storage.reading().at_once) {}

  /// Up to kChunkBytes, which lie there until the next call; nothing before them is asked for afterwards.
  const std::byte* at(const Source& source, int64_t offset, int64_t bytes) {
    if (offset < begin_ || offset + bytes > end_) {
      const int64_t taken = std::max(bytes, std::min(ahead_bytes_, source.size_bytes() - offset));
      if (taken > static_cast<int64_t>(buffer_.size())) buffer_.resize(static_cast<size_t>(std::max(taken, kChunkBytes)));
      begin_ = end_ = offset;
      source.read_past_cache(offset, buffer_.data(), taken);
      end_ = offset + taken;
    }
    return buffer_.data() + (offset - begin_);
  }

 private:
  int64_t ahead_bytes_, begin_ = 0, end_ = 0;
  std::vector<std::byte> buffer_;
};

class FileCheck {
 public:
  FileCheck(const fs::path& path, const Metadata& metadata, size_t file, const Storage& storage, VerifySummary& summary)
      : name_(metadata.files[file].name),
        summary_(summary),
        metadata_(metadata),
        file_(file),
        source_(storage.open(path)),
        reads_(storage) {}

  void run(const std::vector<Range>& ranges) {
    const int64_t expected_bytes = metadata_.files[file_].size_bytes, present_bytes = source_->size_bytes();
    if (present_bytes != expected_bytes) report(fmt::format("has {} bytes instead of {}", present_bytes, expected_bytes));
    const auto header = data_header(metadata_.id, metadata_.step, static_cast<uint32_t>(file_));
    if (present_bytes < kDataHeaderBytes || !equals(header))
      report("does not begin with the header of this checkpoint: it is damaged or of another checkpoint");
    int64_t end = kDataHeaderBytes;
    for (const Range& range : ranges) {
      check_padding(end, std::min(range.begin, present_bytes));
      if (range.end > present_bytes) {
        report(fmt::format("bytes {}..{} are missing", range.begin, range.end), &range);
      } else if (digest(range) != range.digest) {
        report(fmt::format("bytes {}..{} do not match their checksum", range.begin, range.end), &range);
      }
      end = range.end;
    }
    check_padding(end, std::min(expected_bytes, present_bytes));
  }

 private:
  bool equals(const std::array<std::byte, kDataHeaderBytes>& header) {
    std::array<std::byte, kDataHeaderBytes> present;
    source_->read_at(0, present.data(), kDataHeaderBytes);
    summary_.checked_bytes += kDataHeaderBytes;
    return present == header;
  }
  void check_padding(int64_t begin, int64_t end) {
    if (begin >= end) return;
    const auto* padding = reads_.at(*source_, begin, end - begin);
    summary_.checked_bytes += end - begin;
    if (std::any_of(padding, padding + (end - begin), [](std::byte b) { return b != std::byte{0}; }))
      report(fmt::format("the padding at bytes {}..{} is not zero", begin, end));
  }
  Digest digest(const Range& range) {
    Hasher hasher;
    for (int64_t at = range.begin; at < range.end; at += kChunkBytes) {
      const int64_t bytes = std::min(kChunkBytes, range.end - at);
      hasher.add(reads_.at(*source_, at, bytes), bytes);
    }
    summary_.checked_bytes += range.end - range.begin;
    return hasher.digest();
  }
  void report(const std::string& what, const Range* range = nullptr) {
    Damage damage{name_, "", "", ""};
    if (range) (range->is_tensor ? damage.tensor : damage.extra) = *range->owner;
    damage.description = range ? fmt::format("{}: {} '{}': {}", name_, range->is_tensor ? "tensor" : "extra", *range->owner, what)
                               : fmt::format("{}: {}", name_, what);
    summary_.damage.push_back(std::move(damage));
  }

  std::string name_;
  VerifySummary& summary_;
  const Metadata& metadata_;
  size_t file_;
  std::unique_ptr<Source> source_;
  FrontToBack reads_;
};

// Files that no checkpoint put there: harmless to a reader, but a sign that files of two checkpoints were mixed.
void report_strangers(const fs::path& path, const Metadata& metadata, const Storage& storage, VerifySummary& summary) {
  std::set<std::string> known{kMetadataName};
  for (const FileRecord& file : metadata.files) known.insert(file.name);
  for (const FolderEntry& entry : storage.list(path)) {
    if (!known.contains(entry.name))
      summary.damage.push_back({entry.name, "", "", fmt::format("{}: does not belong to this checkpoint", entry.name)});
  }
}

}  // namespace

void verify_file(const fs::path& file, const Metadata& metadata, size_t number, const std::vector<Range>& ranges, const Storage& storage,
                 VerifySummary& summary) {
  try {
    FileCheck(file, metadata, number, storage, summary).run(ranges);
  } catch (const base::CheckpointError& unreadable) {
    // Name what lies in the file: that is what is lost.
    std::set<std::pair<bool, std::string>> lost;
    for (const Range& range : ranges) lost.emplace(range.is_tensor, *range.owner);
    if (lost.empty()) lost.emplace(false, "");
    for (const auto& [is_tensor, owner] : lost)
      summary.damage.push_back({metadata.files[number].name, is_tensor ? owner : "", is_tensor ? "" : owner, unreadable.what()});
  }
}

VerifySummary verify(const fs::path& path, const Storage& storage) {
  const auto start = std::chrono::steady_clock::now();
  VerifySummary summary;
  const auto lease = storage.hold(path, false);
  if (!lease) throw base::CheckpointError("{} is being removed by another process", path.string());
  try {
    const Metadata metadata = load_metadata(path, storage);
    summary.step = metadata.step;
    summary.files = static_cast<int64_t>(metadata.files.size());
    summary.tensors = static_cast<int64_t>(metadata.tensors.size());
    summary.extras = static_cast<int64_t>(metadata.extras.size());
    for (const TensorRecord& record : metadata.tensors) summary.pieces += static_cast<int64_t>(record.pieces.size());
    const auto ranges = ranges_of(metadata);
    for (size_t file = 0; file < metadata.files.size(); ++file)
      verify_file(path / metadata.files[file].name, metadata, file, ranges[file], storage, summary);
    report_strangers(path, metadata, storage, summary);
  } catch (const base::CheckpointError& unreadable) {
    summary.damage.push_back({kMetadataName, "", "", unreadable.what()});
  }
  summary.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return summary;
}

}  // namespace ingot::checkpoint
