#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/format/boxes.h"
#include "interchange/dcp.h"

namespace ingot::interchange {
namespace {

using base::CheckpointError;
using tensor::Box;

constexpr int64_t kBufferBytes = int64_t{4} << 20;      // what one read of scattered elements takes
constexpr int64_t kSmallReadBytes = int64_t{64} << 10;  // below this a read costs its call, not its bytes
constexpr int64_t kMetadataLimitBytes = int64_t{1} << 31;
constexpr size_t kOpenFiles = 64;

std::string read_whole(const checkpoint::Storage& storage, const fs::path& file, int64_t limit_bytes) {
  const auto source = storage.open(file);
  if (source->size_bytes() > limit_bytes)
    throw CheckpointError("{} has {} bytes, more than the {} that are read", file.string(), source->size_bytes(), limit_bytes);
  std::string content(static_cast<size_t>(source->size_bytes()), '\0');
  source->read_at(0, content.data(), source->size_bytes());
  return content;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_row_major(const StoredTensor& stored) {
  int64_t expected = 1;
  for (size_t d = stored.shape.size(); d-- > 0;) {
    if (stored.shape[d] != 1 && stored.stride[d] != expected) return false;
    expected *= stored.shape[d];
  }
  return true;
}

// Shapes but for dims of one element: some writers add or drop those.
tensor::Shape squeezed(const tensor::Shape& shape) {
  tensor::Shape out;
  std::copy_if(shape.begin(), shape.end(), std::back_inserter(out), [](int64_t extent) { return extent != 1; });
  return out;
}

// The strides that the dims of a chunk have in what is stored, when the shapes agree but for dims of one element.
std::vector<int64_t> strides_of(const Box& chunk, const StoredTensor& stored) {
  std::vector<int64_t> strides(chunk.extent.size(), 0);
  size_t from = 0;
  for (size_t d = 0; d < chunk.extent.size(); ++d) {
    if (chunk.extent[d] == 1) continue;
    while (stored.shape[from] == 1) ++from;
    strides[d] = stored.stride[from++];
  }
  return strides;
}

std::vector<int64_t> row_major(const tensor::Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// The element that `box` begins with, of a buffer that begins with that of `outer`.
int64_t element_of(const Box& box, const Box& outer, const std::vector<int64_t>& strides) {
  int64_t element = 0;
  for (size_t d = 0; d < strides.size(); ++d) element += (box.offset[d] - outer.offset[d]) * strides[d];
  return element;
}

// Elements from the first to the last of a part of this extent.
int64_t span_of(const tensor::Shape& extent, const std::vector<int64_t>& strides) {
  int64_t last = 0;
  for (size_t d = 0; d < strides.size(); ++d) last += (extent[d] - 1) * strides[d];
  return last + 1;
}

// Copies elements between two buffers with strides of their own; rows that are dense in both are copied whole.
void copy_strided(const std::byte* source, const std::vector<int64_t>& source_strides, std::byte* destination,
                  const std::vector<int64_t>& destination_strides, const tensor::Shape& extent, int64_t element_bytes) {
  const size_t dims = extent.size();
  size_t outer = dims;  // dims before this are walked through
  int64_t run = 1;
  while (outer > 0 && (extent[outer - 1] == 1 || (source_strides[outer - 1] == run && destination_strides[outer - 1] == run)))
    run *= extent[--outer];
  std::vector<int64_t> index(outer, 0);
  int64_t from = 0, to = 0;
  while (true) {
    std::memcpy(destination + to * element_bytes, source + from * element_bytes, static_cast<size_t>(run * element_bytes));
    size_t d = outer;
    while (true) {
      if (d == 0) return;
      --d;
      from += source_strides[d];
      to += destination_strides[d];
      if (++index[d] < extent[d]) break;
      from -= source_strides[d] * extent[d];
      to -= destination_strides[d] * extent[d];
      index[d] = 0;
    }
  }
}

class DcpSource : public checkpoint::TensorSource {
 public:
  DcpSource(const fs::path& path, const DcpOptions& options) : reader_(path, options) {}
  std::vector<tensor::LogicalTensor> list() const override { return reader_.list(); }
  void read_run(const tensor::LogicalTensor& tensor, const Box& box, std::byte* destination) const override {
    reader_.read(tensor.name, box, destination);
  }
  const fs::path& path() const override { return reader_.path(); }

 private:
  DcpReader reader_;
};

}  // namespace

// A chunk of which a part goes into a buffer of the box `wanted`.
struct DcpReader::Part {
  const DcpTensorRecord& record;
  const DcpChunk& chunk;
  const Opened& opened;
  std::vector<int64_t> strides;  // of the chunk's dims in the file
  const Box& wanted;
  std::vector<int64_t> wanted_strides;
  std::byte* destination;
};

bool is_dcp(const fs::path& path) { return is_there(path / kDcpMetadataName); }

std::unique_ptr<checkpoint::TensorSource> open_dcp(const fs::path& path, const DcpOptions& options) {
  return std::make_unique<DcpSource>(path, options);
}

DcpReader::DcpReader(const fs::path& path, const DcpOptions& options)
    : path_(path), options_(options), storage_(options.storage ? *options.storage : checkpoint::local_storage()) {
  const fs::path file = path_ / kDcpMetadataName;
  if (!is_there(file))
    throw CheckpointError("{} holds no complete DCP checkpoint: there is no {}, which is written last", path_.string(), kDcpMetadataName);
  const Pickle pickle(read_whole(storage_, file, kMetadataLimitBytes), file.string());
  metadata_ = decode_dcp(pickle);
  for (size_t i = 0; i < metadata_.tensors.size(); ++i) places_.emplace(metadata_.tensors[i].tensor.name, i);
  std::set<std::string> present;
  for (const auto& entry : storage_.list(path_)) present.insert(entry.name);
  for (const std::string& name : metadata_.files) {
    if (!present.contains(name))
      throw CheckpointError("{}: the file {} is missing, which {} names", path_.string(), name, kDcpMetadataName);
  }
  check_megatron();
}

void DcpReader::check_megatron() {
  constexpr int64_t kLimitBytes = 1 << 20;
  const fs::path file = path_ / "metadata.json";
  if (!is_there(file)) return;
  const auto document = nlohmann::json::parse(read_whole(storage_, file, kLimitBytes), nullptr, false);
  if (!document.is_object() || !document.contains("sharded_backend")) return;  // of something else
  if (document["sharded_backend"] != "torch_dist")
    throw CheckpointError("{}: the checkpoint's format is {}; only torch_dist is read", file.string(), document["sharded_backend"].dump());
}

std::vector<tensor::LogicalTensor> DcpReader::list() const {
  std::vector<tensor::LogicalTensor> out;
  for (const DcpTensorRecord& record : metadata_.tensors) out.push_back(record.tensor);
  return out;
}

const DcpTensorRecord& DcpReader::record(std::string_view name) const {
  const auto found = places_.find(name);
  if (found != places_.end()) return metadata_.tensors[found->second];
  for (const DcpForeignTensor& other : metadata_.foreign) {
    if (other.name == name)
      throw CheckpointError("{}: tensor '{}' has the dtype {}, which ingot has not", path_.string(), name, other.dtype);
  }
  std::vector<std::string> names;
  for (const DcpTensorRecord& one : metadata_.tensors) names.push_back(one.tensor.name);
  throw CheckpointError("{} has no tensor '{}'{}", path_.string(), name, base::did_you_mean(name, names));
}

const tensor::LogicalTensor& DcpReader::tensor(std::string_view name) const { return record(name).tensor; }

std::shared_ptr<const checkpoint::Source> DcpReader::source(uint32_t file) const {
  const std::lock_guard lock(mutex_);
  const auto found = sources_.find(file);
  if (found != sources_.end()) return found->second;
  if (sources_.size() >= kOpenFiles) sources_.clear();
  return sources_.emplace(file, storage_.open(path_ / metadata_.files[file])).first->second;
}

TorchArchive DcpReader::archive(const DcpPlace& place) const {
  return TorchArchive(FileView(source(place.file), (path_ / metadata_.files[place.file]).string(), place.offset, place.size_bytes),
                      options_.crc != Crc::ignore);
}

DcpReader::Opened DcpReader::open_chunk(const DcpTensorRecord& record, size_t index) const {
  const DcpChunk& chunk = record.chunks[index];
  {
    const std::lock_guard lock(mutex_);
    const auto found = opened_.find(&chunk);
    if (found != opened_.end()) return found->second;
  }
  const TorchArchive torch = archive(chunk.place);
  Opened opened;
  opened.stored = torch.tensor(torch.root());
  if (opened.stored.dtype != record.tensor.dtype || squeezed(opened.stored.shape) != squeezed(chunk.box.extent))
    throw CheckpointError("{}: the chunk of tensor '{}' at {} should be {} {}, but {} {} is stored at byte {}", torch.zip().view().file(),
                          record.tensor.name, tensor::to_string(chunk.box.offset), tensor::name_of(record.tensor.dtype),
                          tensor::to_string(chunk.box.extent), tensor::name_of(opened.stored.dtype), tensor::to_string(opened.stored.shape),
                          chunk.place.offset);
  const ZipEntry& entry = torch.zip().entries()[opened.stored.entry];
  opened.data_begin = chunk.place.offset + opened.stored.data_offset;
  opened.entry_bytes = entry.size_bytes;
  opened.crc = entry.crc;
  opened.contiguous = is_row_major(opened.stored);
  if (options_.crc == Crc::always) {
    torch.zip().check(entry);
    read_bytes_ += entry.size_bytes;
    opened.checked = true;
  }
  const std::lock_guard lock(mutex_);
  return opened_.try_emplace(&chunk, std::move(opened)).first->second;
}

void DcpReader::read_file(const Opened& opened, int64_t offset, std::byte* destination, int64_t size_bytes) const {
  opened.source->read_at(opened.data_begin + offset, destination, size_bytes);
  read_bytes_ += size_bytes;
}

void DcpReader::check_crc(const Part& part, const std::byte* data, int64_t size_bytes) const {
  if (options_.crc == Crc::ignore || part.opened.checked || size_bytes != part.opened.entry_bytes) return;
  if (crc32(0, data, size_bytes) != part.opened.crc)
    throw CheckpointError(
        "{}: the {} bytes at {}, the chunk of tensor '{}' at {}, do not have the CRC that was saved; the file is damaged (or was saved "
        "with "
        "torch's CRCs switched off: then read without checking them)",
        (path_ / metadata_.files[part.chunk.place.file]).string(), size_bytes, part.opened.data_begin, part.record.tensor.name,
        tensor::to_string(part.chunk.box.offset));
}

// Reads in one call what lies dense, or nearly so; else halves.
void DcpReader::read_part(const Part& part, const Box& common) const {
  const int64_t width = tensor::size_bytes(part.record.tensor.dtype), count = tensor::element_count(common.extent);
  const int64_t span = span_of(common.extent, part.strides),
                first = part.opened.stored.begin + element_of(common, part.chunk.box, part.strides);
  std::byte* const destination = part.destination + element_of(common, part.wanted, part.wanted_strides) * width;
  const bool dense = span == count;
  const bool in_order = part.opened.contiguous && dense && span_of(common.extent, part.wanted_strides) == count;
  if (in_order) {
    read_file(part.opened, first * width, destination, span * width);
    return check_crc(part, destination, span * width);
  }
  if (span * width <= kBufferBytes && (count >= span / 4 || span * width <= kSmallReadBytes)) {
    std::vector<std::byte> buffer(static_cast<size_t>(span * width));
    read_file(part.opened, first * width, buffer.data(), span * width);
    check_crc(part, buffer.data(), span * width);
    return copy_strided(buffer.data(), part.strides, destination, part.wanted_strides, common.extent, width);
  }
  size_t longest = 0;  // the dim whose elements lie farthest apart
  for (size_t d = 0; d < common.extent.size(); ++d) {
    if ((common.extent[d] - 1) * part.strides[d] > (common.extent[longest] - 1) * part.strides[longest]) longest = d;
  }
  Box half = common;
  half.extent[longest] /= 2;
  read_part(part, half);
  half.offset[longest] += half.extent[longest];
  half.extent[longest] = common.extent[longest] - half.extent[longest];
  read_part(part, half);
}

void DcpReader::read(std::string_view name, const Box& box, std::byte* destination) const {
  const DcpTensorRecord& record = this->record(name);
  if (!tensor::is_inside(box, record.tensor.shape))
    throw CheckpointError("{}: the box at {} of extent {} is not inside tensor '{}' of shape {}", path_.string(),
                          tensor::to_string(box.offset), tensor::to_string(box.extent), name, tensor::to_string(record.tensor.shape));
  const int64_t count = tensor::element_count(box.extent);
  if (count == 0) return;
  std::pair<std::vector<Box>, checkpoint::BoxIndex>* index = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto found = indices_.find(&record);
    if (found == indices_.end()) {
      std::vector<Box> boxes;
      for (const DcpChunk& chunk : record.chunks) boxes.push_back(chunk.box);
      checkpoint::BoxIndex made(boxes);
      found = indices_.emplace(&record, std::pair(std::move(boxes), std::move(made))).first;
    }
    index = &found->second;
  }
  for (const size_t i : index->second.touching(index->first, box)) {
    Box common;
    tensor::intersect(record.chunks[i].box, box, common);
    Opened opened = open_chunk(record, i);
    opened.source = source(record.chunks[i].place.file);
    const Part part{record, record.chunks[i],      opened,     strides_of(record.chunks[i].box, opened.stored),
                    box,    row_major(box.extent), destination};
    read_part(part, common);
  }
  wanted_bytes_ += count * tensor::size_bytes(record.tensor.dtype);
}

std::vector<std::byte> DcpReader::read(std::string_view name) const {
  const DcpTensorRecord& record = this->record(name);
  for (size_t i = 0; i < record.chunks.size(); ++i) open_chunk(record, i);  // before memory is taken: the bytes are there
  const Box box = tensor::whole(record.tensor.shape);
  std::vector<std::byte> out(static_cast<size_t>(tensor::element_count(box.extent) * tensor::size_bytes(record.tensor.dtype)));
  read(name, box, out.data());
  return out;
}

std::vector<std::string> DcpReader::objects() const {
  std::vector<std::string> names;
  for (const DcpObjectRecord& object : metadata_.objects) names.push_back(object.name);
  return names;
}

const DcpObjectRecord& DcpReader::object_record(std::string_view name) const {
  for (const DcpObjectRecord& object : metadata_.objects) {
    if (object.name == name) return object;
  }
  throw CheckpointError("{} has no object '{}'{}", path_.string(), name, base::did_you_mean(name, objects()));
}

nlohmann::json DcpReader::object(std::string_view name) const { return to_json(archive(object_record(name).place).root()); }

std::optional<std::string> DcpReader::object_content(std::string_view name) const {
  return content_of(archive(object_record(name).place).root());
}

void DcpReader::verify() const {
  const auto check = [&](const TorchArchive& torch) {
    for (const ZipEntry& entry : torch.zip().entries()) torch.zip().check(entry);
  };
  for (const DcpTensorRecord& record : metadata_.tensors) {
    for (size_t i = 0; i < record.chunks.size(); ++i) {
      open_chunk(record, i);
      check(archive(record.chunks[i].place));
    }
  }
  for (const DcpObjectRecord& object : metadata_.objects) check(archive(object.place));
}

nlohmann::json DcpReader::megatron_common() const {
  const fs::path file = path_ / "common.pt";
  if (!is_there(file)) return nullptr;
  const std::shared_ptr<const checkpoint::Source> source = storage_.open(file);
  const TorchArchive torch(FileView(source, file.string(), 0, source->size_bytes()), options_.crc != Crc::ignore);
  return to_json(torch.root());
}

}  // namespace ingot::interchange
