// Writes a GGUF file, version 3, as llama.cpp reads it: named values, then named tensors, each at a multiple of kAlignment bytes. Knows
// bytes only; what they mean is said in architecture.h and vocabulary.h. One thread; values are kept until the file is written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <variant>
#include <vector>

namespace ingot::gguf {

constexpr int64_t kAlignment = 32;

using Value =
    std::variant<uint32_t, float, bool, std::string, std::vector<std::string>, std::vector<float>, std::vector<int32_t>, std::vector<bool>>;
struct Field {
  std::string key;
  Value value;
};

/// Of a tensor's elements; the numbers are the format's.
enum class Type : uint32_t { fp32 = 0, fp16 = 1, q8_0 = 8, bf16 = 30 };
/// Elements that share a scale: rows are multiples of it.
int64_t block_size(Type type);
int64_t size_bytes(Type type, int64_t elements);

using Sink = std::function<void(const void* data, int64_t bytes)>;
struct Tensor {
  std::string name;
  std::vector<int64_t> shape;  // rows last, as torch has it; the file has them turned round
  Type type = Type::fp32;
  std::function<void(const Sink&)> write;  // called once, in the order of the file

  int64_t elements() const;
};

/// Writes aside, a tensor at a time, and renames: no part of a file is left where something fails. Throws FileError, and ModelError for
/// what the format cannot hold: more than four dims, a row that is no multiple of its type's block, two tensors of a name.
void write_file(const std::filesystem::path& path, const std::vector<Field>& fields, const std::vector<Tensor>& tensors);

}  // namespace ingot::gguf
