#include "checkpoint/safetensors/archive.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "checkpoint/format/digest.h"

namespace ingot::checkpoint {
namespace {

using base::CheckpointError;
using tensor::DType;

constexpr std::string_view kOwn = "ingot/", kFiles = "ingot/files/", kDigests = "ingot/digests";
constexpr const char* kMark = "ingot_archive";
constexpr std::string_view kVersion = "1";

std::span<const std::byte> bytes_of(const void* data, size_t size) { return {static_cast<const std::byte*>(data), size}; }

int64_t size_of(const tensor::LogicalTensor& tensor) { return tensor::element_count(tensor.shape) * tensor::size_bytes(tensor.dtype); }

Digest digest_of_metadata(const std::map<std::string, std::string>& metadata) {
  Hasher hasher;
  for (const auto& [key, value] : metadata) {
    hasher.add(key.data(), static_cast<int64_t>(key.size()) + 1);  // and the 0 behind it
    hasher.add(value.data(), static_cast<int64_t>(value.size()) + 1);
  }
  return hasher.digest();
}

// In the order of the file: a span's place says which is first.
std::vector<std::string> in_order_of_file(const SafetensorsReader& reader) {
  std::vector<std::string> names;
  for (const auto& tensor : reader.tensors())
    if (tensor.name != kDigests) names.push_back(tensor.name);
  std::sort(names.begin(), names.end(), [&](const auto& a, const auto& b) {
    const auto of_a = reader.bytes(a), of_b = reader.bytes(b);
    return of_a.data() != of_b.data() ? of_a.data() < of_b.data() : of_a.size() < of_b.size();
  });
  return names;
}

}  // namespace

void write_archive(const fs::path& file, const std::vector<SafetensorsItem>& items, const std::map<std::string, std::string>& files,
                   std::map<std::string, std::string> metadata) {
  metadata.insert(kTransformersMetadata.begin(), kTransformersMetadata.end());
  metadata.insert_or_assign(kMark, std::string(kVersion));
  static constexpr std::byte kZeros[kArchiveAlignment] = {};
  std::vector<Digest> digests = {digest_of_metadata(metadata)};
  std::vector<SafetensorsItem> all;
  int64_t end = 0, paddings = 0;
  const auto add = [&](SafetensorsItem item) {
    if (const int64_t missing = (kArchiveAlignment - end % kArchiveAlignment) % kArchiveAlignment; missing > 0) {
      all.push_back({{fmt::format("{}padding/{}", kOwn, paddings++), DType::uint8, {missing}},
                     [missing] { return bytes_of(kZeros, static_cast<size_t>(missing)); }});
      end += missing;
    }
    end += size_of(item.tensor);
    all.push_back(std::move(item));
  };
  for (const auto& item : items) {
    if (is_of_archive(item.tensor.name)) throw CheckpointError("the tensor name '{}' is reserved for archives", item.tensor.name);
    add(item);
  }
  for (const auto& [name, content] : files)
    add({{std::string(kFiles) + name, DType::uint8, {static_cast<int64_t>(content.size())}},
         [&content] { return bytes_of(content.data(), content.size()); }});
  add({{std::string(kDigests), DType::uint8, {}}, [&digests] { return bytes_of(digests.data(), digests.size() * sizeof(Digest)); }});
  const auto digested = all.size() - 1;
  all.back().tensor.shape = {static_cast<int64_t>(digested) + 1, static_cast<int64_t>(sizeof(Digest))};
  for (size_t i = 0; i < digested; ++i)
    all[i].bytes = [&digests, bytes = std::move(all[i].bytes)] {
      const auto written = bytes();
      digests.push_back(digest_of(written.data(), static_cast<int64_t>(written.size())));
      return written;
    };
  write_safetensors(file, all, metadata, kArchiveAlignment);
}

bool is_archive(const SafetensorsReader& reader) { return reader.metadata().contains(kMark); }

bool is_of_archive(std::string_view name) { return name.starts_with(kOwn); }

std::map<std::string, std::string> files_in(const SafetensorsReader& reader) {
  std::map<std::string, std::string> files;
  for (const auto& tensor : reader.tensors()) {
    if (!tensor.name.starts_with(kFiles) || tensor.dtype != DType::uint8) continue;
    const auto bytes = reader.bytes(tensor.name);
    const auto name = tensor.name.substr(kFiles.size());
    if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string_view("/\0", 2)) != std::string::npos)
      throw CheckpointError("{}: '{}' is not the plain name of a file", reader.file_of(tensor.name).string(), name);
    files.emplace(name, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  return files;
}

VerifySummary verify_archive(const fs::path& file) {
  const auto start = std::chrono::steady_clock::now();
  const SafetensorsReader reader(file);
  if (!is_archive(reader))
    throw CheckpointError("{} is a safetensors file without checksums: `ingot checkpoint export-archive` writes some", file.string());
  VerifySummary summary;
  summary.files = 1;
  const auto damaged = [&](const std::string& tensor, const std::string& what) {
    summary.damage.push_back({file.filename().string(), tensor, "", fmt::format("{}: {}", file.string(), what)});
  };
  const auto names = in_order_of_file(reader);
  const auto stored = reader.contains(kDigests) ? reader.bytes(kDigests) : std::span<const std::byte>();
  if (stored.size() != (names.size() + 1) * sizeof(Digest)) {
    damaged(std::string(kDigests), fmt::format("{} digests are missing or of another file", names.size() + 1));
  } else {
    std::vector<Digest> digests(names.size() + 1);
    std::memcpy(digests.data(), stored.data(), stored.size());
    if (digests[0] != digest_of_metadata(reader.metadata())) damaged("", "the metadata is not what was written");
    for (size_t i = 0; i < names.size(); ++i) {
      const auto bytes = reader.bytes(names[i]);
      summary.checked_bytes += static_cast<int64_t>(bytes.size());
      if (digests[i + 1] != digest_of(bytes.data(), static_cast<int64_t>(bytes.size())))
        damaged(names[i], fmt::format("tensor '{}' is not what was written", names[i]));
    }
  }
  summary.tensors = static_cast<int64_t>(names.size());
  summary.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return summary;
}

}  // namespace ingot::checkpoint
