#include "checkpoint/load/reader.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/storage/folder.h"

namespace ingot::checkpoint {
namespace {

using base::CheckpointError;

Metadata metadata_from(const std::string& bytes, const fs::path& path) {
  const fs::path file = path / kMetadataName;
  Metadata metadata = decode(bytes, file.string());
  const fs::path name = path.has_filename() ? path.filename() : path.parent_path().filename();
  if (name.string().starts_with("step_") && name != step_name(metadata.step))
    throw CheckpointError(
        "{} is the metadata of step {}, but the folder is called {}; files of two checkpoints were mixed, or the folder was renamed",
        file.string(), metadata.step, name.string());
  return metadata;
}

constexpr int64_t kSeparateRunBytes = int64_t{1} << 16;  // shorter runs are cheaper to read along with what lies between

std::string content_of(const Source& source) {
  std::string bytes(static_cast<size_t>(source.size_bytes()), '\0');
  source.read_at(0, bytes.data(), source.size_bytes());
  return bytes;
}

void check_size(const fs::path& file, int64_t present_bytes, int64_t expected_bytes) {
  if (present_bytes != expected_bytes)
    throw CheckpointError("{} has {} bytes instead of {}; it is truncated or of another checkpoint", file.string(), present_bytes,
                          expected_bytes);
}

}  // namespace

std::string read_metadata(const fs::path& path, const Storage& storage) { return content_of(*storage.open(path / kMetadataName)); }

Metadata load_metadata(const fs::path& path, const Storage& storage) { return metadata_from(read_metadata(path, storage), path); }

Reader::Reader(const fs::path& path, const ReaderOptions& options) : Reader(path, "", options) {}

Reader::Reader(const fs::path& path, const std::string& metadata, const ReaderOptions& options)
    : path_(path), options_(options), storage_(options.storage ? *options.storage : local_storage()) {
  if (options_.files.empty()) lease_ = storage_.hold(path, false);
  if (options_.files.empty() && !lease_)
    throw CheckpointError("{} is being removed by another process; take another checkpoint", path.string());
  if (options_.files.empty() && storage_.lists_sizes())
    for (auto& entry : storage_.list(path)) listed_.emplace(entry.name, entry);
  metadata_ = metadata_from(metadata.empty() ? content_of(*open(path / kMetadataName)) : metadata, path);
  for (size_t i = 0; i < metadata_.tensors.size(); ++i) places_.emplace(metadata_.tensors[i].tensor.name, i);
  files_ = std::vector<OpenFile>(metadata_.files.size());
  if (!options.check_files) return;
  for (size_t file = 0; file < metadata_.files.size(); ++file) {
    if (listed_.empty()) source(file);
    else check_listed(metadata_.files[file]);
  }
}

std::unique_ptr<Source> Reader::open(const fs::path& file) const {
  const auto listed = listed_.find(file.filename().string());
  return listed == listed_.end() ? storage_.open(file) : storage_.open_listed(file, listed->second);
}

void Reader::check_listed(const FileRecord& file) const {
  const auto listed = listed_.find(file.name);
  if (listed == listed_.end())
    throw CheckpointError("{} is missing; the checkpoint is damaged, load an older one", (path_ / file.name).string());
  check_size(path_ / file.name, listed->second.size_bytes, file.size_bytes);
}

fs::path Reader::path_of(size_t file) const {
  return options_.files.empty() ? path_ / metadata_.files[file].name : options_.files.at(file);
}

const Source& Reader::source(size_t file) const {
  auto& [mutex, known] = files_[file];
  const std::lock_guard guard(mutex);
  if (known) return *known;
  const FileRecord& expected = metadata_.files[file];
  const fs::path file_path = path_of(file);
  auto source = open(file_path);
  check_size(file_path, source->size_bytes(), expected.size_bytes);
  std::array<std::byte, kDataHeaderBytes> header;
  source->read_at(0, header.data(), kDataHeaderBytes);
  if (header != data_header(metadata_.id, metadata_.step, static_cast<uint32_t>(file)))
    throw CheckpointError("{} does not begin with the header of file {} of checkpoint {}; it is damaged or of another checkpoint",
                          file_path.string(), file, to_string(metadata_.id));
  known = std::move(source);
  return *known;
}

std::vector<tensor::LogicalTensor> Reader::list() const {
  std::vector<tensor::LogicalTensor> tensors;
  for (const TensorRecord& record : metadata_.tensors) tensors.push_back(record.tensor);
  return tensors;
}

uint32_t Reader::place_of(std::string_view name) const { return static_cast<uint32_t>(&record(name) - metadata_.tensors.data()); }

const TensorRecord& Reader::record(std::string_view name) const {
  const auto found = places_.find(name);
  if (found != places_.end()) return metadata_.tensors[found->second];
  std::vector<std::string> names;
  for (const TensorRecord& record : metadata_.tensors) names.push_back(record.tensor.name);
  throw CheckpointError("{} has no tensor '{}'{}", path_.string(), name, base::did_you_mean(name, names));
}

void Reader::read(std::string_view name, const tensor::Box& box, std::byte* destination) const {
  const TensorRecord& tensor = record(name);
  if (!tensor::is_inside(box, tensor.tensor.shape))
    throw CheckpointError("{}: the box at {} of {} is outside tensor '{}' of shape {}", path_.string(), tensor::to_string(box.offset),
                          tensor::to_string(box.extent), name, tensor::to_string(tensor.tensor.shape));
  wanted_bytes_ += tensor::element_count(box.extent) * tensor::size_bytes(tensor.tensor.dtype);
  std::vector<size_t> pieces;
  {
    const std::lock_guard guard(mutex_);
    auto known = indices_.find(&tensor);
    if (known == indices_.end()) {
      std::vector<tensor::Box> boxes;
      for (const PieceRecord& piece : tensor.pieces) boxes.push_back(piece.box);
      BoxIndex index(boxes);
      known = indices_.emplace(&tensor, std::pair(std::move(boxes), std::move(index))).first;
    }
    pieces = known->second.second.touching(known->second.first, box);
  }
  for (const size_t piece : pieces) read_from_piece(tensor, tensor.pieces[piece], box, destination);
}

std::vector<std::byte> Reader::read(std::string_view name) const {
  const auto& tensor = record(name).tensor;
  std::vector<std::byte> bytes(static_cast<size_t>(tensor::element_count(tensor.shape) * tensor::size_bytes(tensor.dtype)));
  read(name, tensor::whole(tensor.shape), bytes.data());
  return bytes;
}

void Reader::read_from_piece(const TensorRecord& record, const PieceRecord& piece, const tensor::Box& wanted,
                             std::byte* destination) const {
  tensor::Box common;
  tensor::intersect(piece.box, wanted, common);
  const int64_t element_bytes = tensor::size_bytes(record.tensor.dtype), piece_bytes = size_bytes(record, piece);
  const int64_t place = common == piece.box ? contiguous_offset(wanted, common) : -1;
  if (place < 0 && !options_.verify) return read_part(record, piece, common, wanted, destination);

  std::vector<std::byte> buffer(place < 0 ? static_cast<size_t>(piece_bytes) : 0);
  read_piece(record, piece, place < 0 ? buffer.data() : destination + place * element_bytes, false);
  if (place < 0) copy_box(buffer.data(), piece.box, destination, wanted, common, element_bytes);
}

void Reader::read_piece(size_t tensor, size_t piece, std::byte* destination, bool is_shared) const {
  const auto& record = metadata_.tensors.at(tensor);
  wanted_bytes_ += size_bytes(record, record.pieces.at(piece));
  read_piece(record, record.pieces[piece], destination, is_shared);
}

void Reader::read_piece(const TensorRecord& record, const PieceRecord& piece, std::byte* destination, bool is_shared) const {
  const int64_t piece_bytes = size_bytes(record, piece);
  if (!read_whole(source(piece.file), piece.offset, destination, piece_bytes, piece.digest, is_shared))
    throw CheckpointError(
        "{}: tensor '{}' is damaged: the checksum of its piece at {} of {} (bytes {}..{}) does not match; load an older checkpoint",
        path_of(piece.file).string(), record.tensor.name, tensor::to_string(piece.box.offset), tensor::to_string(piece.box.extent),
        piece.offset, piece.offset + piece_bytes);
}

bool Reader::read_whole(const Source& source, int64_t offset, std::byte* destination, int64_t size_bytes, const Digest& digest,
                        bool is_shared) const {
  Hasher hasher;
  const int64_t most_bytes = storage_.reading().request_bytes, chunks = (size_bytes + most_bytes - 1) / most_bytes;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t done = size_bytes * chunk / chunks, chunk_bytes = size_bytes * (chunk + 1) / chunks - done;
    if (is_shared) source.read_at(offset + done, destination + done, chunk_bytes);
    else source.read_past_cache(offset + done, destination + done, chunk_bytes);
    if (options_.verify) hasher.add(destination + done, chunk_bytes);
  }
  read_bytes_ += size_bytes;
  return !options_.verify || hasher.digest() == digest;
}

void Reader::read_part(const TensorRecord& record, const PieceRecord& piece, const tensor::Box& common, const tensor::Box& wanted,
                       std::byte* destination) const {
  const int64_t element_bytes = tensor::size_bytes(record.tensor.dtype);
  const Source& file = source(piece.file);
  // Long rows are read one by one, short ones together with what lies between them.
  int64_t run_elements = 1;
  for (size_t d = common.extent.size(); d-- > 0;) {
    run_elements *= common.extent[d];
    if (common.extent[d] != piece.box.extent[d]) break;
  }
  std::vector<tensor::Box> runs{common};
  if (run_elements * element_bytes >= kSeparateRunBytes) runs = cut(common, run_elements);
  std::vector<std::byte> buffer;
  for (const tensor::Box& run : runs) {
    const int64_t first = first_element(piece.box, run), count = last_element(piece.box, run) - first + 1;
    buffer.resize(static_cast<size_t>(count * element_bytes));
    file.read_at(piece.offset + first * element_bytes, buffer.data(), count * element_bytes);
    read_bytes_ += count * element_bytes;
    copy_box(buffer.data(), piece.box, destination, wanted, run, element_bytes, first);
  }
}

std::vector<std::string> Reader::extras() const {
  std::vector<std::string> names;
  for (const ExtraRecord& extra : metadata_.extras) names.push_back(extra.name);
  return names;
}

bool Reader::has_extra(std::string_view name) const {
  return std::any_of(metadata_.extras.begin(), metadata_.extras.end(), [&](const ExtraRecord& extra) { return extra.name == name; });
}

std::string Reader::extra(std::string_view name) const {
  for (const ExtraRecord& extra : metadata_.extras) {
    if (extra.name != name) continue;
    std::string content(static_cast<size_t>(extra.size_bytes), '\0');
    if (!read_whole(source(extra.file), extra.offset, reinterpret_cast<std::byte*>(content.data()), extra.size_bytes, extra.digest, true))
      throw CheckpointError("{}: the extra state '{}' is damaged: its checksum does not match; load an older checkpoint",
                            path_of(extra.file).string(), name);
    return content;
  }
  throw CheckpointError("{} has no extra state '{}'{}", path_.string(), name, base::did_you_mean(name, extras()));
}

}  // namespace ingot::checkpoint
