#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "checkpoint/safetensors/safetensors.h"

namespace ingot::checkpoint {
namespace {

using base::CheckpointError;
using nlohmann::ordered_json;

int64_t size_of(const tensor::LogicalTensor& tensor) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(tensor::element_count(tensor.shape), tensor::size_bytes(tensor.dtype), &bytes))
    throw CheckpointError("tensor '{}' of shape {} is too large for a file", tensor.name, tensor::to_string(tensor.shape));
  return bytes;
}

std::string header_of(std::span<const SafetensorsItem> items, const std::map<std::string, std::string>& metadata, const fs::path& file,
                      int64_t data_alignment) {
  ordered_json header = ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t begin = 0;
  std::set<std::string_view> names;
  for (const SafetensorsItem& item : items) {
    const auto& tensor = item.tensor;
    if (tensor.name.empty() || tensor.name == "__metadata__" || !names.insert(tensor.name).second)
      throw CheckpointError("{}: the tensor name '{}' is empty, reserved or used twice", file.string(), tensor.name);
    const int64_t bytes = size_of(tensor);
    ordered_json& entry = header[tensor.name];
    entry["dtype"] = safetensors_name(tensor.dtype);
    entry["shape"] = tensor.shape;
    entry["data_offsets"] = {begin, begin + bytes};
    begin += bytes;
  }
  try {
    std::string text = header.dump();
    const auto alignment = static_cast<size_t>(data_alignment), before = sizeof(uint64_t);
    text.resize((before + text.size() + alignment - 1) / alignment * alignment - before, ' ');
    return text;
  } catch (const ordered_json::exception& wrong) {
    throw CheckpointError("{}: a name or metadata text cannot be written as JSON: {}", file.string(), wrong.what());
  }
}

// Writes and fsyncs; the caller renames.
void write_aside(const fs::path& aside, std::span<const SafetensorsItem> items, const std::map<std::string, std::string>& metadata,
                 int64_t data_alignment) {
  const std::string header = header_of(items, metadata, aside, data_alignment);
  base::OutputFile out(aside);
  const uint64_t header_bytes = header.size();
  out.write(&header_bytes, sizeof(header_bytes));
  out.write(header);
  for (const SafetensorsItem& item : items) {
    const auto bytes = item.bytes();
    if (static_cast<int64_t>(bytes.size()) != size_of(item.tensor))
      throw CheckpointError("tensor '{}' of shape {} and dtype {} was given {} bytes", item.tensor.name,
                            tensor::to_string(item.tensor.shape), tensor::name_of(item.tensor.dtype), bytes.size());
    out.write(bytes.data(), static_cast<int64_t>(bytes.size()));
  }
  out.sync();
  out.close();
}

fs::path aside_of(const fs::path& file) { return file.string() + ".tmp" + std::to_string(::getpid()); }

// Removes files that were written aside, unless they were renamed.
class Aside {
 public:
  ~Aside() {
    for (const fs::path& file : files_) ::unlink(aside_of(file).c_str());
  }
  void add(const fs::path& file) { files_.push_back(file); }
  void publish() {
    for (const fs::path& file : files_) {
      std::error_code error;
      fs::rename(aside_of(file), file, error);
      if (error) throw CheckpointError("cannot rename {} to {}: {}", aside_of(file).string(), file.string(), error.message());
    }
    files_.clear();
  }

 private:
  std::vector<fs::path> files_;
};

// Consecutive items that share a shard.
std::vector<std::span<const SafetensorsItem>> shards_of(const std::vector<SafetensorsItem>& items, int64_t limit_bytes) {
  std::vector<std::span<const SafetensorsItem>> shards;
  size_t begin = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const int64_t more = size_of(items[i].tensor);
    if (i > begin && more > limit_bytes - bytes) {
      shards.emplace_back(items.data() + begin, i - begin);
      begin = i;
      bytes = 0;
    }
    bytes += more;
  }
  shards.emplace_back(items.data() + begin, items.size() - begin);
  return shards;
}

// Weights of an earlier export, which readers would otherwise take for part of this one.
void remove_stale_weights(const fs::path& folder, const std::set<std::string>& written) {
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const bool weights = name == "model.safetensors" || name == "model.safetensors.index.json" ||
                         (name.starts_with("model-") && name.ends_with(".safetensors") && name.find("-of-") != std::string::npos);
    if (weights && !written.contains(name)) stale.push_back(entry.path());
  }
  for (const fs::path& file : stale) fs::remove(file);
}

}  // namespace

void write_safetensors(const fs::path& file, const std::vector<SafetensorsItem>& items, const std::map<std::string, std::string>& metadata,
                       int64_t data_alignment) {
  Aside aside;
  aside.add(file);
  write_aside(aside_of(file), items, metadata, data_alignment);
  aside.publish();
  base::sync_directory(file.has_parent_path() ? file.parent_path() : fs::path("."));
}

std::vector<std::string> write_safetensors_folder(const fs::path& folder, const std::vector<SafetensorsItem>& items,
                                                  int64_t shard_limit_bytes, const std::map<std::string, std::string>& metadata) {
  if (shard_limit_bytes < 1) throw CheckpointError("a shard limit of {} bytes is not possible", shard_limit_bytes);
  header_of(items, metadata, folder, kDataAlignment);  // refuses names used in two shards before anything is written
  base::make_directories(folder);
  const auto shards = shards_of(items, shard_limit_bytes);
  std::vector<std::string> names;
  ordered_json weight_map = ordered_json::object();
  int64_t total_bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    names.push_back(shards.size() == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
    for (const SafetensorsItem& item : shards[i]) {
      weight_map[item.tensor.name] = names.back();
      total_bytes += size_of(item.tensor);
    }
  }

  Aside aside;
  for (size_t i = 0; i < shards.size(); ++i) {
    aside.add(folder / names[i]);
    write_aside(aside_of(folder / names[i]), shards[i], metadata, kDataAlignment);
  }
  aside.publish();
  if (shards.size() > 1) {
    const ordered_json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
    names.emplace_back("model.safetensors.index.json");
    base::write_file_atomically(folder / names.back(), index.dump(2) + "\n");
  }
  remove_stale_weights(folder, {names.begin(), names.end()});
  base::sync_directory(folder);
  return names;
}

}  // namespace ingot::checkpoint
