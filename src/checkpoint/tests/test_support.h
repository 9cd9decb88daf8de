// Shared by the tests of this folder: a temporary folder, tensors whose every element says where it belongs, and a way to
// damage files.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "base/files.h"
#include "base/test_night.h"
#include "checkpoint/load/reader.h"
#include "checkpoint/save/writer.h"

namespace ingot::checkpoint {

/// A file system in memory where there is one, for tests that call fsync thousands of times.
inline fs::path memory_folder() { return fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path(); }

class TemporaryFolder : public ::testing::Test {
 protected:
  explicit TemporaryFolder(const fs::path& place = fs::temp_directory_path())
      : folder(place / ("ingot_checkpoint_" + std::to_string(::getpid()))) {}
  const fs::path folder;
  void SetUp() override {
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  void TearDown() override { fs::remove_all(folder); }
};

/// What lies in a folder, hidden or not, sorted.
inline std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) out.push_back(entry.path().filename());
  std::sort(out.begin(), out.end());
  return out;
}

inline std::string content_of(const fs::path& path) { return base::read_file(path); }
inline void put_content(const fs::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

/// Tensors in memory, all of their bytes a function of (salt, name, position).
class Sample {
 public:
  explicit Sample(uint64_t salt) : salt_(salt) {}

  Sample& add(std::string name, tensor::DType dtype, tensor::Shape shape) {
    std::string bytes(static_cast<size_t>(tensor::element_count(shape) * tensor::size_bytes(dtype)), '\0');
    uint64_t state = salt_ * 0x9e3779b97f4a7c15 + std::hash<std::string>{}(name);
    for (char& byte : bytes) {
      state = state * 6364136223846793005 + 1442695040888963407;
      byte = static_cast<char>(state >> 56);
    }
    tensors_.push_back({{std::move(name), dtype, std::move(shape)}, std::move(bytes)});
    return *this;
  }
  /// A few tensors of several dtypes and sizes: small, larger than a page, scalar and empty.
  static Sample usual(uint64_t salt) {
    Sample sample(salt);
    sample.add("layers.0.weight", tensor::DType::fp32, {96, 200}).add("layers.1.weight", tensor::DType::bf16, {33, 7});
    sample.add("scalar", tensor::DType::int64, {}).add("empty", tensor::DType::fp16, {0, 4}).add("mask", tensor::DType::boolean, {5});
    return sample;
  }

  std::vector<SaveItem> items() const {
    std::vector<SaveItem> items;
    for (const auto& [tensor, bytes] : tensors_) items.push_back(whole_item(tensor, bytes.data()));
    return items;
  }
  const std::vector<std::pair<tensor::LogicalTensor, std::string>>& tensors() const { return tensors_; }

  /// Whether the checkpoint has exactly these tensors, bit for bit.
  ::testing::AssertionResult is_in(const fs::path& path, const Storage& storage = local_storage()) const {
    const Reader reader(path, {.storage = &storage});
    if (reader.list().size() != tensors_.size()) return ::testing::AssertionFailure() << "has " << reader.list().size() << " tensors";
    for (const auto& [tensor, bytes] : tensors_) {
      if (reader.tensor(tensor.name) != tensor) return ::testing::AssertionFailure() << tensor.name << " has another shape or dtype";
      const auto read = reader.read(tensor.name);
      if (read.size() != bytes.size() || (!read.empty() && std::memcmp(read.data(), bytes.data(), bytes.size()) != 0))
        return ::testing::AssertionFailure() << tensor.name << " has other bytes";
    }
    return ::testing::AssertionSuccess();
  }

 private:
  uint64_t salt_;
  std::vector<std::pair<tensor::LogicalTensor, std::string>> tensors_;
};

}  // namespace ingot::checkpoint
