#include <algorithm>
#include <set>

#include "base/error.h"
#include "checkpoint/format/metadata.h"

namespace ingot::checkpoint {
namespace {

using base::CheckpointError;

constexpr size_t kNameLimitBytes = 4096;

// Names come back to a terminal, so they may not hold control characters.
void check_name(const std::string& name, const char* what, const std::string& origin) {
  const bool printable = std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (name.empty() || name.size() > kNameLimitBytes || !printable)
    throw CheckpointError("{}: the name of {} is empty, longer than {} bytes or holds control characters", origin, what, kNameLimitBytes);
}

void check_files(const Metadata& metadata, const std::string& origin) {
  std::set<std::string_view> names;
  for (const FileRecord& file : metadata.files) {
    const bool plain =
        !file.name.empty() && file.name.size() <= 255 && file.name[0] != '.' &&
        file.name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == std::string::npos;
    if (!plain || file.name == kMetadataName) throw CheckpointError("{}: a data file may not be called '{}'", origin, file.name);
    if (!names.insert(file.name).second) throw CheckpointError("{}: lists the file {} twice", origin, file.name);
    if (file.size_bytes < kDataHeaderBytes)
      throw CheckpointError("{}: gives the file {} {} bytes, less than its header", origin, file.name, file.size_bytes);
  }
}

void check_tensor(const TensorRecord& record, const Metadata& metadata, const std::string& origin) {
  const auto& tensor = record.tensor;
  check_name(tensor.name, "a tensor", origin);
  int64_t bytes = 0;
  try {
    bytes = tensor::element_count(tensor.shape);
  } catch (const base::ConfigError& wrong) {
    throw CheckpointError("{}: tensor '{}': {}", origin, tensor.name, wrong.what());
  }
  if (__builtin_mul_overflow(bytes, tensor::size_bytes(tensor.dtype), &bytes))
    throw CheckpointError("{}: tensor '{}' of shape {} has more than 2^63 bytes", origin, tensor.name, tensor::to_string(tensor.shape));
  std::vector<const Box*> boxes;
  boxes.reserve(record.pieces.size());
  for (const PieceRecord& piece : record.pieces) {
    if (piece.file >= metadata.files.size())
      throw CheckpointError("{}: a piece of tensor '{}' is in a file that does not exist", origin, tensor.name);
    boxes.push_back(&piece.box);
  }
  const std::string fault = why_not_tiled_by(tensor.shape, boxes);
  if (!fault.empty()) throw CheckpointError("{}: tensor '{}' of shape {}: {}", origin, tensor.name, tensor::to_string(tensor.shape), fault);
}

template <class Record, class Name>
void check_sorted(const std::vector<Record>& records, Name name, const char* what, const std::string& origin) {
  for (size_t i = 1; i < records.size(); ++i) {
    if (name(records[i - 1]) >= name(records[i]))
      throw CheckpointError("{}: {} '{}' is listed twice or out of order", origin, what, name(records[i]));
  }
}

// One overflow-safe question: does [offset, offset + size) lie behind the header and inside the file?
bool is_in_file(int64_t offset, int64_t size_bytes, int64_t file_bytes) {
  return offset >= kDataHeaderBytes && size_bytes >= 0 && offset <= file_bytes && size_bytes <= file_bytes - offset;
}

}  // namespace

int64_t size_bytes(const TensorRecord& tensor, const PieceRecord& piece) {
  return tensor::element_count(piece.box.extent) * tensor::size_bytes(tensor.tensor.dtype);
}

std::vector<std::vector<Range>> ranges_of(const Metadata& metadata) {
  std::vector<std::vector<Range>> ranges(metadata.files.size());
  std::vector<size_t> counts(ranges.size(), 0);
  for (const TensorRecord& record : metadata.tensors)
    for (const PieceRecord& piece : record.pieces) ++counts[piece.file];
  for (size_t file = 0; file < ranges.size(); ++file) ranges[file].reserve(counts[file]);
  for (const TensorRecord& record : metadata.tensors) {
    for (const PieceRecord& piece : record.pieces)
      ranges[piece.file].push_back({piece.offset, piece.offset + size_bytes(record, piece), &record.tensor.name, true, piece.digest});
  }
  for (const ExtraRecord& extra : metadata.extras)
    ranges[extra.file].push_back({extra.offset, extra.offset + extra.size_bytes, &extra.name, false, extra.digest});
  for (auto& file : ranges)
    std::sort(file.begin(), file.end(),
              [](const Range& a, const Range& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  return ranges;
}

void validate(const Metadata& metadata, const std::string& origin) {
  if (metadata.step < 0) throw CheckpointError("{}: the step {} is negative", origin, metadata.step);
  check_files(metadata, origin);
  check_sorted(
      metadata.tensors, [](const TensorRecord& r) -> const std::string& { return r.tensor.name; }, "tensor", origin);
  check_sorted(
      metadata.extras, [](const ExtraRecord& r) -> const std::string& { return r.name; }, "extra", origin);
  for (const TensorRecord& record : metadata.tensors) {
    check_tensor(record, metadata, origin);
    for (const PieceRecord& piece : record.pieces) {
      const FileRecord& file = metadata.files[piece.file];
      const int64_t bytes = size_bytes(record, piece);
      if (!is_in_file(piece.offset, bytes, file.size_bytes))
        throw CheckpointError("{}: a piece of tensor '{}' lies at byte {} of {}, outside its {} bytes", origin, record.tensor.name,
                              piece.offset, file.name, file.size_bytes);
    }
  }
  for (const ExtraRecord& extra : metadata.extras) {
    check_name(extra.name, "an extra", origin);
    if (extra.file >= metadata.files.size() || !is_in_file(extra.offset, extra.size_bytes, metadata.files[extra.file].size_bytes))
      throw CheckpointError("{}: extra '{}' lies outside its file", origin, extra.name);
  }
  const auto ranges = ranges_of(metadata);
  for (size_t f = 0; f < ranges.size(); ++f) {
    int64_t end = kDataHeaderBytes;
    for (const Range& range : ranges[f]) {
      if (range.begin < end)
        throw CheckpointError("{}: '{}' overlaps what is stored before it in {}", origin, *range.owner, metadata.files[f].name);
      if (range.begin - end >= kLargeAlignment)
        throw CheckpointError("{}: a hole lies before '{}' in {}", origin, *range.owner, metadata.files[f].name);
      end = range.end;
    }
    if (metadata.files[f].size_bytes - end >= kLargeAlignment)
      throw CheckpointError("{}: the file {} ends with bytes that belong to nothing", origin, metadata.files[f].name);
  }
}

}  // namespace ingot::checkpoint
