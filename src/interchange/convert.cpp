#include "interchange/convert.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/format/boxes.h"
#include "checkpoint/save/data_writer.h"
#include "checkpoint/storage/folder.h"

namespace ingot::interchange {
namespace {

using base::CheckpointError;
using checkpoint::Metadata;
using checkpoint::Storage;

// A tensor and the name that it gets.
struct Renamed {
  tensor::LogicalTensor from, to;
};

std::vector<Renamed> renamed(const std::vector<tensor::LogicalTensor>& tensors, const Rename& rename, ConvertReport& report) {
  std::vector<Renamed> out;
  for (const tensor::LogicalTensor& tensor : tensors) {
    const auto name = rename ? rename(tensor.name) : std::optional(tensor.name);
    if (name) {
      out.push_back({tensor, {*name, tensor.dtype, tensor.shape}});
    } else {
      report.left_out.push_back(tensor.name);
    }
  }
  std::sort(out.begin(), out.end(), [](const Renamed& a, const Renamed& b) { return a.to.name < b.to.name; });
  for (size_t i = 1; i < out.size(); ++i) {
    if (out[i].to.name == out[i - 1].to.name)
      throw CheckpointError("the tensors '{}' and '{}' would both be called '{}'", out[i - 1].from.name, out[i].from.name, out[i].to.name);
  }
  return out;
}

std::string printed(const nlohmann::json& document) {
  return document.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::map<std::string, std::string> extras_of(const DcpReader& reader) {
  std::map<std::string, std::string> extras;
  for (const std::string& name : reader.objects()) {
    const auto content = name.starts_with(kExtraPrefix) ? reader.object_content(name) : std::nullopt;
    if (content) {
      extras[name.substr(std::string_view(kExtraPrefix).size())] = *content;
    } else {
      extras[kObjectPrefix + name + ".json"] = printed(reader.object(name));
    }
  }
  if (const auto common = reader.megatron_common(); !common.is_null()) extras[std::string(kObjectPrefix) + "common.json"] = printed(common);
  return extras;
}

// The folder in which a checkpoint is put together; removed unless it is published.
class HiddenFolder {
 public:
  HiddenFolder(const Storage& storage, fs::path path) : storage_(storage), path_(std::move(path)) {
    storage_.make_folder(path_);
    lease_ = storage_.hold(path_, false);
  }
  HiddenFolder(const HiddenFolder&) = delete;
  HiddenFolder& operator=(const HiddenFolder&) = delete;
  ~HiddenFolder() {
    if (published_) return;
    try {
      storage_.remove_folder(path_);
    } catch (const std::exception& failure) {
      base::log_warning("an unfinished checkpoint is left behind: {}", failure.what());
    }
  }
  const fs::path& path() const { return path_; }
  void publish(const fs::path& target) {
    const bool replaced = storage_.publish(path_, target);
    published_ = true;
    if (replaced) checkpoint::remove_unused(path_, storage_);
  }

 private:
  const Storage& storage_;
  fs::path path_;
  std::unique_ptr<checkpoint::Lease> lease_;
  bool published_ = false;
};

}  // namespace

ConvertReport import_dcp(const fs::path& source, const fs::path& folder, const ImportOptions& options) {
  const Storage& storage = options.storage ? *options.storage : checkpoint::local_storage();
  if (options.step < 0 || options.piece_limit_bytes < 1)
    throw CheckpointError("step {} and pieces of {} bytes are not possible", options.step, options.piece_limit_bytes);
  const DcpReader reader(source, {options.crc, options.storage});
  ConvertReport report{folder / checkpoint::step_name(options.step)};
  if (fs::exists(report.path)) throw CheckpointError("{} is already there; choose another step or folder", report.path.string());
  for (const DcpForeignTensor& foreign : reader.metadata().foreign) {
    if (!options.skip_foreign)
      throw CheckpointError("{}: tensor '{}' has the dtype {}, which ingot has not; such tensors can be left out", source.string(),
                            foreign.name, foreign.dtype);
    report.left_out.push_back(foreign.name);
  }
  const std::vector<Renamed> tensors = renamed(reader.list(), options.rename, report);

  storage.make_folder(folder);
  Metadata metadata{checkpoint::random_id(), options.step, {}, {}, {}};
  HiddenFolder hidden(storage, folder / checkpoint::hidden_name(checkpoint::step_name(options.step), to_string(metadata.id)));
  checkpoint::DataWriter data(storage, hidden.path(), metadata.id, options.step, 0);
  std::vector<std::byte> buffer;
  for (const Renamed& one : tensors) {
    checkpoint::TensorRecord& record = metadata.tensors.emplace_back();
    record.tensor = one.to;
    const int64_t width = tensor::size_bytes(one.to.dtype);
    for (tensor::Box& box : checkpoint::cut(tensor::whole(one.to.shape), std::max<int64_t>(1, options.piece_limit_bytes / width))) {
      buffer.resize(static_cast<size_t>(tensor::element_count(box.extent) * width));
      reader.read(one.from.name, box, buffer.data());
      record.pieces.push_back(data.add_piece(one.to, std::move(box), buffer.data()));
      report.data_bytes += static_cast<int64_t>(buffer.size());
    }
  }
  for (const auto& [name, content] : extras_of(reader)) metadata.extras.push_back(data.add_extra(name, content));
  metadata.files.push_back(data.finish());
  checkpoint::validate(metadata, report.path.string());
  const std::string encoded = encode(metadata);
  const auto sink = storage.create(hidden.path() / checkpoint::kMetadataName);
  sink->write(encoded.data(), static_cast<int64_t>(encoded.size()));
  sink->finish();
  hidden.publish(report.path);
  report.tensors = static_cast<int64_t>(metadata.tensors.size());
  report.extras = static_cast<int64_t>(metadata.extras.size());
  return report;
}

ConvertReport export_dcp(const fs::path& source, const fs::path& folder, const ExportOptions& options) {
  const auto from = checkpoint::open_tensors(source);
  ConvertReport report{folder};
  const std::vector<Renamed> tensors = renamed(from->list(), options.rename, report);
  std::vector<tensor::LogicalTensor> to;
  std::map<std::string_view, const tensor::LogicalTensor*> origin;
  for (const Renamed& one : tensors) {
    to.push_back(one.to);
    origin.emplace(one.to.name, &one.from);
  }
  std::map<std::string, std::string> objects;
  if (const checkpoint::Reader* reader = from->reader(); reader && options.extras) {
    for (const std::string& name : reader->extras()) objects[kExtraPrefix + name] = reader->extra(name);
  }
  const DcpFill fill = [&](const tensor::LogicalTensor& tensor, const tensor::Box& box, std::byte* destination) {
    from->read_run(*origin.at(tensor.name), box, destination);
    report.data_bytes += tensor::element_count(box.extent) * tensor::size_bytes(tensor.dtype);
  };
  write_dcp(folder, to, fill, objects, options.write);
  report.tensors = static_cast<int64_t>(to.size());
  report.extras = static_cast<int64_t>(objects.size());
  return report;
}

}  // namespace ingot::interchange
