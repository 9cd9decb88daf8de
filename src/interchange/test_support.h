// Shared by the tests of this folder: the recorded checkpoints of torch and Megatron, whose elements say where they belong, and
// damaging bytes.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/files.h"
#include "checkpoint/tests/test_fuzz.h"
#include "checkpoint/tests/test_support.h"
#include "interchange/dcp.h"

namespace ingot::interchange {

/// Tests run in the root of the repository.
inline const fs::path kFixtures = "tests/references/dcp";

inline nlohmann::json book_of(const std::string& fixture) {
  return nlohmann::json::parse(base::read_file(kFixtures / (fixture + ".json")));
}

/// The bits that tests/oracles/make_dcp_fixtures.py gives element `index` of tensor `id`.
inline void put_element(uint64_t id, uint64_t index, tensor::DType dtype, std::byte* destination) {
  const uint64_t mixed = ((id << 32) + index) * 0x9E3779B97F4A7C15;
  const auto width = static_cast<size_t>(tensor::size_bytes(dtype));
  if (width == 16) {
    const uint64_t both[2] = {mixed, ~mixed};
    std::memcpy(destination, both, 16);
  } else {
    const uint64_t top = mixed >> (dtype == tensor::DType::boolean ? 63 : 64 - 8 * width);
    std::memcpy(destination, &top, width);
  }
}

/// The row-major elements of a box of such a tensor.
inline std::vector<std::byte> expected_elements(uint64_t id, const tensor::LogicalTensor& tensor, const tensor::Box& box) {
  const auto width = static_cast<size_t>(tensor::size_bytes(tensor.dtype));
  const int64_t count = tensor::element_count(box.extent);
  std::vector<std::byte> out(static_cast<size_t>(count) * width);
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, flat = 0, stride = 1;
    for (size_t d = box.extent.size(); d-- > 0;) {
      flat += (box.offset[d] + rest % box.extent[d]) * stride;
      rest /= box.extent[d];
      stride *= tensor.shape[d];
    }
    put_element(id, static_cast<uint64_t>(flat), tensor.dtype, out.data() + static_cast<size_t>(i) * width);
  }
  return out;
}

inline tensor::Box random_box(const tensor::Shape& shape, std::mt19937_64& random) {
  tensor::Box box = tensor::whole(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) continue;
    box.offset[d] = static_cast<int64_t>(random() % static_cast<uint64_t>(shape[d]));
    box.extent[d] = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(shape[d] - box.offset[d]));
  }
  return box;
}

/// Elements of an open file in memory, for archives that are in no file.
class MemorySource : public checkpoint::Source {
 public:
  explicit MemorySource(std::string bytes) : bytes_(std::move(bytes)) {}
  int64_t size_bytes() const override { return static_cast<int64_t>(bytes_.size()); }
  void read_at(int64_t offset, void* destination, int64_t size_bytes) const override {
    if (offset < 0 || size_bytes < 0 || offset > this->size_bytes() - size_bytes) throw std::logic_error("read outside of the file");
    std::memcpy(destination, bytes_.data() + offset, static_cast<size_t>(size_bytes));
  }

 private:
  std::string bytes_;
};

inline FileView view_of(const std::string& bytes) {
  return {std::make_shared<MemorySource>(bytes), "memory", 0, static_cast<int64_t>(bytes.size())};
}

/// Changes one to three bits or bytes.
inline std::string damaged(std::string bytes, std::mt19937_64& random) {
  for (uint64_t i = 0, n = 1 + random() % 3; i < n; ++i) {
    char& byte = bytes[random() % bytes.size()];
    byte = random() % 2 ? static_cast<char>(byte ^ (1 << random() % 8)) : static_cast<char>(random());
  }
  return bytes;
}

using checkpoint::MemoryPeak;

}  // namespace ingot::interchange
