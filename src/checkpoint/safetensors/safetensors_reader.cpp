#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/safetensors/safetensors.h"

namespace ingot::checkpoint {
namespace {

using base::CheckpointError;
using nlohmann::json;
using tensor::DType;

static_assert(std::endian::native == std::endian::little, "files are read and written without swapping bytes");

constexpr int64_t kHeaderLimitBytes = 100'000'000;  // the limit of the reference implementation
constexpr size_t kRankLimit = 64;

struct NamedDType {
  DType dtype;
  std::string_view name;
};
constexpr std::array<NamedDType, 13> kDTypes = {{{DType::fp64, "F64"},
                                                 {DType::fp32, "F32"},
                                                 {DType::bf16, "BF16"},
                                                 {DType::fp16, "F16"},
                                                 {DType::fp8_e4m3, "F8_E4M3"},
                                                 {DType::fp8_e5m2, "F8_E5M2"},
                                                 {DType::int64, "I64"},
                                                 {DType::int32, "I32"},
                                                 {DType::int16, "I16"},
                                                 {DType::int8, "I8"},
                                                 {DType::uint8, "U8"},
                                                 {DType::boolean, "BOOL"},
                                                 {DType::complex64, "C64"}}};

// JSON without duplicate keys (of which a parser would silently take one) and without deep nesting.
json parse_json(std::string_view text, const fs::path& path) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > 8) throw CheckpointError("{}: the JSON header is nested too deeply", path.string());
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      throw CheckpointError("{}: the name '{}' occurs twice in the JSON header", path.string(), parsed.get<std::string>());
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& wrong) {
    throw CheckpointError("{}: the JSON header cannot be read ({}); the file is damaged or of another format", path.string(), wrong.what());
  }
}

std::map<std::string, std::string> texts(const json& object, const fs::path& path) {
  std::map<std::string, std::string> out;
  if (!object.is_object()) throw CheckpointError("{}: __metadata__ is not an object", path.string());
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) throw CheckpointError("{}: __metadata__ '{}' is not a text", path.string(), key);
    out.emplace(key, value.get<std::string>());
  }
  return out;
}

int64_t integer(const json& value, const fs::path& path, const std::string& name, const char* what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    throw CheckpointError("{}: tensor '{}' has {} {}, which is not a whole number of at most 63 bits", path.string(), name, what,
                          value.dump());
  return value.get<int64_t>();
}

struct Described {
  tensor::LogicalTensor tensor;
  int64_t begin, end;  // bytes after the header
};

Described describe(const std::string& name, const json& entry, int64_t data_bytes, const fs::path& path) {
  const auto bad = [&](const std::string& why) -> CheckpointError {
    return CheckpointError("{}: tensor '{}' {}", path.string(), name, why);
  };
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets"))
    throw bad("is not described by dtype, shape and data_offsets");
  const json &dtype = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  if (!dtype.is_string() || !shape.is_array() || !offsets.is_array() || offsets.size() != 2 || shape.size() > kRankLimit)
    throw bad("has a dtype, shape or data_offsets of the wrong form");

  Described out;
  out.tensor.name = name;
  const auto known =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](const NamedDType& d) { return d.name == dtype.get_ref<const std::string&>(); });
  if (known == kDTypes.end()) throw bad(fmt::format("has the dtype {}, which ingot does not read", dtype.dump()));
  out.tensor.dtype = known->dtype;
  for (const json& extent : shape) out.tensor.shape.push_back(integer(extent, path, name, "the extent"));
  out.begin = integer(offsets[0], path, name, "the offset");
  out.end = integer(offsets[1], path, name, "the offset");
  if (out.begin > out.end || out.end > data_bytes)
    throw bad(fmt::format("lies at bytes {}..{} of {} data bytes; the file is truncated or damaged", out.begin, out.end, data_bytes));

  int64_t size_bytes = 0;
  try {
    size_bytes = tensor::element_count(out.tensor.shape);
  } catch (const base::ConfigError& wrong) {
    throw bad(fmt::format("is impossible: {}", wrong.what()));
  }
  if (__builtin_mul_overflow(size_bytes, tensor::size_bytes(out.tensor.dtype), &size_bytes) || size_bytes != out.end - out.begin)
    throw bad(fmt::format("of shape {} and dtype {} does not fit its {} bytes", tensor::to_string(out.tensor.shape), known->name,
                          out.end - out.begin));
  return out;
}

// The format allows neither holes nor overlaps: in the order of their offsets tensors follow one another to the file's end.
void require_no_holes(std::vector<Described>& all, int64_t data_bytes, const fs::path& path) {
  std::sort(all.begin(), all.end(),
            [](const Described& a, const Described& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  int64_t next = 0;
  for (const Described& one : all) {
    if (one.begin != next)
      throw CheckpointError("{}: tensor '{}' begins at byte {}, where byte {} is due: tensors {}", path.string(), one.tensor.name,
                            one.begin, next, one.begin < next ? "overlap" : "leave a hole");
    next = one.end;
  }
  if (next != data_bytes) throw CheckpointError("{}: {} bytes follow the last tensor", path.string(), data_bytes - next);
}

}  // namespace

std::string_view safetensors_name(DType dtype) {
  for (const NamedDType& known : kDTypes) {
    if (known.dtype == dtype) return known.name;
  }
  throw CheckpointError("safetensors files cannot hold the dtype {}", tensor::name_of(dtype));
}

SafetensorsReader::SafetensorsReader(const fs::path& file_or_folder) : path_(file_or_folder) {
  std::error_code ignored;
  if (fs::is_directory(path_, ignored)) {
    add_folder(path_);
  } else {
    add_file(path_);
  }
  for (const auto& [name, entry] : entries_) tensors_.push_back(entry.tensor);
}

void SafetensorsReader::add_file(const fs::path& path) {
  const base::MappedFile& file = files_.emplace_back(path);
  const std::span<const std::byte> all = file.bytes();
  uint64_t header_bytes = 0;
  if (all.size() < sizeof(header_bytes))
    throw CheckpointError("{} has {} bytes: too short for a safetensors file", path.string(), all.size());
  std::memcpy(&header_bytes, all.data(), sizeof(header_bytes));
  if (header_bytes > static_cast<uint64_t>(kHeaderLimitBytes) || header_bytes > all.size() - sizeof(header_bytes))
    throw CheckpointError(
        "{}: its first 8 bytes promise a header of {} bytes, but the file has {} and a header at most {}; it is truncated or not a "
        "safetensors file",
        path.string(), header_bytes, all.size(), kHeaderLimitBytes);
  const std::string_view text(reinterpret_cast<const char*>(all.data()) + sizeof(header_bytes), header_bytes);
  if (!text.starts_with('{')) throw CheckpointError("{}: the header does not begin with '{{'; it is not a safetensors file", path.string());

  const auto data_begin = static_cast<int64_t>(sizeof(header_bytes) + header_bytes);
  const int64_t data_bytes = file.size_bytes() - data_begin;
  const json header = parse_json(text, path);
  std::vector<Described> described;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      metadata_.merge(texts(entry, path));
    } else {
      described.push_back(describe(name, entry, data_bytes, path));
    }
  }
  require_no_holes(described, data_bytes, path);
  for (Described& one : described) {
    const auto [place, fresh] =
        entries_.try_emplace(one.tensor.name, Entry{files_.size() - 1, data_begin + one.begin, one.end - one.begin, one.tensor});
    if (!fresh)
      throw CheckpointError("{}: tensor '{}' is also in {}", path.string(), one.tensor.name, files_[place->second.file].path().string());
  }
  data_bytes_ += data_bytes;
}

void SafetensorsReader::add_folder(const fs::path& folder) {
  const fs::path single = folder / "model.safetensors", index_path = folder / "model.safetensors.index.json";
  std::error_code ignored;
  if (fs::exists(single, ignored)) return add_file(single);
  if (!fs::exists(index_path, ignored))
    throw CheckpointError(
        "{} holds neither model.safetensors nor model.safetensors.index.json; name the file itself if it is called otherwise",
        folder.string());

  const json index = parse_json(base::read_file(index_path, kHeaderLimitBytes), index_path);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    throw CheckpointError("{}: there is no weight_map that says which file holds which tensor", index_path.string());
  std::map<std::string, std::string> shard_of;
  std::set<std::string> shards;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    const std::string file = shard.is_string() ? shard.get<std::string>() : "";
    if (file.empty() || file.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos || !file.ends_with(".safetensors"))
      throw CheckpointError("{}: tensor '{}' is said to be in {}, which is not the plain name of a .safetensors file", index_path.string(),
                            name, shard.dump());
    shard_of.emplace(name, file);
    shards.insert(file);
  }
  for (const std::string& shard : shards) add_file(folder / shard);

  for (const auto& [name, shard] : shard_of) {
    const auto entry = entries_.find(name);
    if (entry == entries_.end() || files_[entry->second.file].path().filename() != shard)
      throw CheckpointError("{}: tensor '{}' is not in {}, where the index says", index_path.string(), name, shard);
  }
  for (const auto& [name, entry] : entries_) {
    if (!shard_of.contains(name))
      throw CheckpointError("{}: tensor '{}' is missing in {}", files_[entry.file].path().string(), name, index_path.string());
  }
}

const SafetensorsReader::Entry& SafetensorsReader::find(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& one : tensors_) names.push_back(one.name);
  throw CheckpointError("{} has no tensor '{}'{}", path_.string(), name, base::did_you_mean(name, names));
}

const tensor::LogicalTensor& SafetensorsReader::tensor(std::string_view name) const { return find(name).tensor; }

std::span<const std::byte> SafetensorsReader::bytes(std::string_view name) const {
  const Entry& entry = find(name);
  return files_[entry.file].bytes().subspan(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.size_bytes));
}

void SafetensorsReader::allow_private_writes() {
  for (const auto& file : files_)
    if (::mprotect(const_cast<std::byte*>(file.data()), static_cast<size_t>(file.size_bytes()), PROT_READ | PROT_WRITE) != 0)
      throw base::FileError("cannot make the mapping of {} writable: {}", file.path().string(), std::strerror(errno));
}

const fs::path& SafetensorsReader::file_of(std::string_view name) const { return files_[find(name).file].path(); }

}  // namespace ingot::checkpoint
