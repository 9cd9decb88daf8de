#include "interchange/dcp_metadata.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "checkpoint/format/boxes.h"
#include "interchange/torch_save.h"

namespace ingot::interchange {
namespace {

using base::CheckpointError;

constexpr size_t kNameLimitBytes = 4096, kAttributeLimit = 64;
const std::string kMetadataModule = "torch.distributed.checkpoint.metadata";

// The attributes of an object of a class with this name. Old versions of torch kept these classes in other modules.
PickleValue attributes(const PickleValue& value, std::string_view name) {
  if (!value.is(PickleKind::object) || !value.callable().is(PickleKind::global) || value.name() != name ||
      !value.module().starts_with("torch."))
    value.fail(fmt::format("an object of torch's class {} is expected", name));
  const auto state = value.state();
  if (!state) value.fail(fmt::format("the {} is empty", name));
  if (state->has_pairs() && state->size() > kAttributeLimit) value.fail(fmt::format("the {} has {} attributes", name, state->size()));
  return *state;
}

bool is_named(const PickleValue& value, std::string_view name) {
  return value.is(PickleKind::object) && value.callable().is(PickleKind::global) && value.name() == name;
}

// An entry of storage_data: where the archive of a chunk (or of an object, which has no offset) lies.
struct Stored {
  tensor::Shape offset;
  DcpPlace place;
};
using StoredByName = std::unordered_map<std::string_view, std::vector<Stored>>;

class Decoder {
 public:
  explicit Decoder(const Pickle& pickle) : pickle_(pickle), root_(attributes(pickle.root(), "Metadata")) {}

  DcpMetadata run() {
    read_storage();
    const PickleValue entries = root_.at("state_dict_metadata");
    for (size_t i = 0; i < entries.size(); ++i) {
      const auto [key, value] = entries.pair(i);
      if (!names_.insert(key.text()).second) key.fail("a name occurs twice");
      const std::string name(key.text());
      if (name.empty() || name.size() > kNameLimitBytes) key.fail(fmt::format("a name of {} bytes is not possible", name.size()));
      if (is_named(value, "BytesStorageMetadata")) {
        const DcpPlace* place = find(name, {});
        if (!place) value.fail(fmt::format("object '{}' is stored nowhere", name));
        out_.objects.push_back({name, *place});
      } else {
        read_tensor(name, attributes(value, "TensorStorageMetadata"));
      }
    }
    sort_by_name();
    check_overlaps();
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    throw CheckpointError("{}: tensor '{}' {}", pickle_.origin(), name, what);
  }

  void read_storage() {
    const PickleValue entries = root_.at("storage_data");
    std::map<std::string_view, uint32_t> files;
    for (size_t i = 0; i < entries.size(); ++i) {
      const auto [key, value] = entries.pair(i);
      const PickleValue index = attributes(key, "MetadataIndex"), info = attributes(value, "_StorageInfo");
      Stored stored;
      const std::string_view name = index.at("fqn").text();
      if (name.size() > kNameLimitBytes) key.fail(fmt::format("a name of {} bytes is not possible", name.size()));
      const auto offset = index.find("offset");
      if (offset && !offset->is_none()) stored.offset = shape_of(*offset);
      const PickleValue path = info.at("relative_path");
      const std::string_view file = path.text();
      if (file.empty() || file.size() > 255 || file.find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos || file == "." ||
          file == "..")
        path.fail(fmt::format("'{}' is not the plain name of a file", file));
      const auto [known, fresh] = files.try_emplace(file, static_cast<uint32_t>(out_.files.size()));
      if (fresh) out_.files.emplace_back(file);
      stored.place.file = known->second;
      stored.place.offset = info.at("offset").integer();
      stored.place.size_bytes = info.at("length").integer();
      if (stored.place.offset < 0 || stored.place.size_bytes < 0 || stored.place.offset > INT64_MAX - stored.place.size_bytes)
        value.fail(fmt::format("{} bytes at {} are not possible", stored.place.size_bytes, stored.place.offset));
      if (const auto transforms = info.find("transform_descriptors"); transforms && !transforms->is_none() && transforms->size() > 0)
        value.fail(fmt::format("'{}' was saved with an extension of torch (compression), which is not read", name));
      places_.push_back(stored.place);
      stored_[name].push_back(std::move(stored));
    }
    for (auto& [name, list] : stored_) {
      std::sort(list.begin(), list.end(), [](const Stored& a, const Stored& b) { return a.offset < b.offset; });
      for (size_t i = 1; i < list.size(); ++i) {
        if (list[i].offset == list[i - 1].offset)
          fail(std::string(name), fmt::format("has two archives for the chunk at {}", tensor::to_string(list[i].offset)));
      }
    }
  }

  const DcpPlace* find(const std::string& name, const tensor::Shape& offset) const {
    const auto list = stored_.find(name);
    if (list == stored_.end()) return nullptr;
    const auto found = std::lower_bound(list->second.begin(), list->second.end(), offset,
                                        [](const Stored& stored, const tensor::Shape& wanted) { return stored.offset < wanted; });
    return found == list->second.end() || found->offset != offset ? nullptr : &found->place;
  }

  void read_tensor(const std::string& name, const PickleValue& value) {
    // TensorProperties are pickled as a tuple that begins with the dtype, or as a dict.
    const PickleValue properties = attributes(value.at("properties"), "TensorProperties");
    if (properties.is(PickleKind::tuple) && properties.size() == 0) properties.fail("there is no dtype");
    const PickleValue torch_dtype = properties.is(PickleKind::dict) ? properties.at("dtype") : properties[0];
    const auto dtype = dtype_of(torch_dtype);
    if (!dtype) {
      out_.foreign.push_back({name, std::string(torch_dtype.name())});
      return;
    }
    DcpTensorRecord record{{name, *dtype, shape_of(value.at("size"))}, {}};
    const auto bytes_of = [&](const tensor::Shape& shape) {
      int64_t bytes = 0;
      try {
        bytes = tensor::element_count(shape);
      } catch (const base::ConfigError& wrong) {
        fail(name, fmt::format("is impossible: {}", wrong.what()));
      }
      if (__builtin_mul_overflow(bytes, tensor::size_bytes(*dtype), &bytes)) fail(name, "is impossibly large");
      return bytes;
    };
    bytes_of(record.tensor.shape);
    const PickleValue chunks = value.at("chunks");
    chunks_ += chunks.size();
    if (chunks_ > pickle_.node_count()) chunks.fail("tensors share their chunks");  // of which each tensor would get a copy
    std::vector<tensor::Box> boxes;
    for (size_t i = 0; i < chunks.size(); ++i) {
      const PickleValue chunk = attributes(chunks[i], "ChunkStorageMetadata");
      tensor::Box box{shape_of(chunk.at("offsets")), shape_of(chunk.at("sizes"))};
      const int64_t bytes = bytes_of(box.extent);
      if (bytes == 0) continue;
      const DcpPlace* place = find(name, box.offset);
      if (!place) fail(name, fmt::format("is not complete: its chunk at {} is stored nowhere", tensor::to_string(box.offset)));
      if (bytes > place->size_bytes)
        fail(name,
             fmt::format("has a chunk at {} of {} bytes, but only {} are stored", tensor::to_string(box.offset), bytes, place->size_bytes));
      boxes.push_back(box);
      record.chunks.push_back({std::move(box), *place});
    }
    const std::string fault = checkpoint::why_not_tiled(record.tensor.shape, boxes);
    if (!fault.empty()) fail(name, fmt::format("of shape {}: {}", tensor::to_string(record.tensor.shape), fault));
    out_.tensors.push_back(std::move(record));
  }

  void sort_by_name() {
    std::sort(out_.tensors.begin(), out_.tensors.end(), [](const auto& a, const auto& b) { return a.tensor.name < b.tensor.name; });
    std::sort(out_.objects.begin(), out_.objects.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    std::sort(out_.foreign.begin(), out_.foreign.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    for (size_t i = 1; i < out_.tensors.size(); ++i) {
      if (out_.tensors[i].tensor.name == out_.tensors[i - 1].tensor.name) fail(out_.tensors[i].tensor.name, "occurs twice");
    }
    for (size_t i = 1; i < out_.objects.size(); ++i) {
      if (out_.objects[i].name == out_.objects[i - 1].name) fail(out_.objects[i].name, "(an object) occurs twice");
    }
  }

  // So that a small folder cannot stand for endless tensors.
  void check_overlaps() {
    std::sort(places_.begin(), places_.end(), [](const DcpPlace& a, const DcpPlace& b) {
      return std::tie(a.file, a.offset, a.size_bytes) < std::tie(b.file, b.offset, b.size_bytes);
    });
    for (size_t i = 1; i < places_.size(); ++i) {
      const DcpPlace &a = places_[i - 1], &b = places_[i];
      if (a.file == b.file && a.offset + a.size_bytes > b.offset)
        throw CheckpointError("{}: two archives overlap in {}: {} bytes at {} and {} at {}", pickle_.origin(), out_.files[a.file],
                              a.size_bytes, a.offset, b.size_bytes, b.offset);
    }
  }

  const Pickle& pickle_;
  PickleValue root_;
  StoredByName stored_;
  std::vector<DcpPlace> places_;
  std::unordered_set<std::string_view> names_;
  size_t chunks_ = 0;
  DcpMetadata out_;
};

class Encoder {
 public:
  std::string run(const DcpMetadata& metadata, const std::vector<DcpPlace>& hollow) {
    // Each tensor's chunks with their places; those without elements last of all know theirs from `hollow`.
    std::vector<std::vector<DcpChunk>> chunks;
    size_t next_hollow = 0;
    for (const DcpTensorRecord& record : metadata.tensors) {
      chunks.push_back(record.chunks);
      if (record.chunks.empty()) chunks.back().push_back({tensor::whole(record.tensor.shape), hollow.at(next_hollow++)});
    }
    begin_object("Metadata");
    out_.shared_text("state_dict_metadata").empty_dict().mark();
    for (size_t i = 0; i < metadata.tensors.size(); ++i) add_tensor(metadata.tensors[i].tensor, chunks[i]);
    for (const DcpObjectRecord& object : metadata.objects) {
      out_.shared_text(object.name);
      begin_object("BytesStorageMetadata");
      end_object();
    }
    out_.set_all();
    // Of which path of nested keys each name was made: its own here.
    out_.text("planner_data").empty_dict().mark();
    for (const DcpTensorRecord& record : metadata.tensors) add_path(record.tensor.name);
    for (const DcpObjectRecord& object : metadata.objects) add_path(object.name);
    out_.set_all();
    out_.text("storage_data").empty_dict().mark();
    for (size_t i = 0; i < metadata.tensors.size(); ++i) {
      for (size_t c = 0; c < chunks[i].size(); ++c)
        add_place(metadata, metadata.tensors[i].tensor.name, &chunks[i][c].box.offset, static_cast<int64_t>(c), chunks[i][c].place);
    }
    for (const DcpObjectRecord& object : metadata.objects) add_place(metadata, object.name, nullptr, 0, object.place);
    out_.set_all();
    out_.text("storage_meta").none().text("version").text("1.0.0");
    end_object();
    return out_.finish();
  }

 private:
  void begin_object(const std::string& name, const std::string& module = kMetadataModule) {
    out_.global(module, name).empty_tuple().new_object().empty_dict().mark();
  }
  void end_object() { out_.set_all().build(); }
  void add_size(const tensor::Shape& shape) { out_.global("torch", "Size").mark().integers(shape).tuple().reduce(); }

  void add_tensor(const tensor::LogicalTensor& tensor, const std::vector<DcpChunk>& chunks) {
    out_.shared_text(tensor.name);
    begin_object("TensorStorageMetadata");
    // dtype, layout, requires_grad, memory format, pinned
    out_.shared_text("properties").global(kMetadataModule, "TensorProperties").empty_tuple().new_object().mark();
    out_.global("torch", std::string(torch_name(tensor.dtype)));
    out_.global("torch.serialization", "_get_layout").mark().shared_text("torch.strided").tuple().reduce().boolean(false);
    out_.global(kMetadataModule, "_MEM_FORMAT_ENCODING").mark().integer(0).tuple().reduce().boolean(false).tuple().build();
    out_.shared_text("size");
    add_size(tensor.shape);
    out_.shared_text("chunks").empty_list().mark();
    for (const DcpChunk& chunk : chunks) {
      begin_object("ChunkStorageMetadata");
      out_.shared_text("offsets");
      add_size(chunk.box.offset);
      out_.shared_text("sizes");
      add_size(chunk.box.extent);
      end_object();
    }
    out_.append_all();
    end_object();
  }

  void add_path(const std::string& name) { out_.shared_text(name).mark().shared_text(name).tuple(); }

  void add_place(const DcpMetadata& metadata, const std::string& name, const tensor::Shape* offset, int64_t index, const DcpPlace& place) {
    begin_object("MetadataIndex");
    out_.shared_text("fqn").shared_text(name).shared_text("index");
    if (offset) {
      out_.integer(index).shared_text("offset");
      add_size(*offset);
    } else {
      out_.none();
    }
    end_object();
    begin_object("_StorageInfo", "torch.distributed.checkpoint.filesystem");
    out_.shared_text("relative_path").shared_text(metadata.files.at(place.file));
    out_.shared_text("offset").integer(place.offset).shared_text("length").integer(place.size_bytes);
    end_object();
  }

  PickleWriter out_;
};

}  // namespace

DcpMetadata decode_dcp(const Pickle& pickle) { return Decoder(pickle).run(); }

std::string encode_dcp(const DcpMetadata& metadata, const std::vector<DcpPlace>& hollow) { return Encoder().run(metadata, hollow); }

}  // namespace ingot::interchange
