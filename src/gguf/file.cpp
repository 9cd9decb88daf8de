#include "gguf/file.h"

#include <unistd.h>

#include <cstring>
#include <set>

#include "base/error.h"
#include "base/files.h"

namespace ingot::gguf {
namespace {

using base::ModelError;

constexpr uint32_t kVersion = 3;
constexpr size_t kMaxDims = 4, kMaxName = 63;

// Numbers of value types in the file.
enum class Kind : uint32_t { uint32 = 4, int32 = 5, float32 = 6, boolean = 7, string = 8, array = 9 };

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The head of a file; all numbers are little-endian, as the machines are.
class Head {
 public:
  template <class Number>
  void number(Number value) {
    char bytes[sizeof(Number)];
    std::memcpy(bytes, &value, sizeof(Number));
    bytes_.append(bytes, sizeof(Number));
  }
  void text(const std::string& value) {
    number(static_cast<uint64_t>(value.size()));
    bytes_ += value;
  }
  void field(const Field& field) {
    text(field.key);
    std::visit([this](const auto& value) { write(value); }, field.value);
  }
  void tensor(const Tensor& tensor, int64_t offset) {
    text(tensor.name);
    number(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t dim = tensor.shape.size(); dim-- > 0;) number(static_cast<uint64_t>(tensor.shape[dim]));
    number(static_cast<uint32_t>(tensor.type));
    number(static_cast<uint64_t>(offset));
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void kind(Kind kind) { number(static_cast<uint32_t>(kind)); }
  template <class Items>
  void array(Kind of, const Items& items) {
    kind(Kind::array), kind(of);
    number(static_cast<uint64_t>(items.size()));
  }
  void write(uint32_t value) { kind(Kind::uint32), number(value); }
  void write(float value) { kind(Kind::float32), number(value); }
  void write(bool value) { kind(Kind::boolean), number(static_cast<uint8_t>(value)); }
  void write(const std::string& value) { kind(Kind::string), text(value); }
  void write(const std::vector<std::string>& values) {
    array(Kind::string, values);
    for (const auto& value : values) text(value);
  }
  void write(const std::vector<float>& values) {
    array(Kind::float32, values);
    for (const float value : values) number(value);
  }
  void write(const std::vector<int32_t>& values) {
    array(Kind::int32, values);
    for (const int32_t value : values) number(value);
  }
  void write(const std::vector<bool>& values) {
    array(Kind::boolean, values);
    for (const bool value : values) number(static_cast<uint8_t>(value));
  }

  std::string bytes_;
};

void check(const Tensor& tensor, std::set<std::string>& known) {
  if (!known.insert(tensor.name).second) throw ModelError("two tensors would be {} in a GGUF file", tensor.name);
  if (tensor.name.size() > kMaxName || tensor.shape.empty() || tensor.shape.size() > kMaxDims)
    throw ModelError("the tensor {} has {} dims; GGUF takes names of {} letters and 1 to {} dims", tensor.name, tensor.shape.size(),
                     kMaxName, kMaxDims);
  if (tensor.shape.back() % block_size(tensor.type) != 0)
    throw ModelError("the tensor {} has rows of {} elements, which are no multiple of its type's block of {}", tensor.name,
                     tensor.shape.back(), block_size(tensor.type));
}

std::string head_of(const std::vector<Field>& fields, const std::vector<Tensor>& tensors) {
  Head head;
  for (const char letter : {'G', 'G', 'U', 'F'}) head.number(letter);
  head.number(kVersion);
  head.number(static_cast<uint64_t>(tensors.size()));
  head.number(static_cast<uint64_t>(fields.size()));
  for (const auto& field : fields) head.field(field);
  int64_t offset = 0;
  std::set<std::string> known;
  for (const auto& tensor : tensors) {
    check(tensor, known);
    head.tensor(tensor, offset);
    offset += aligned(size_bytes(tensor.type, tensor.elements()));
  }
  return head.bytes();
}

void pad(base::OutputFile& file, int64_t written_bytes) {
  const std::string zeros(static_cast<size_t>(aligned(written_bytes) - written_bytes), '\0');
  file.write(zeros);
}

void write_tensor(base::OutputFile& file, const Tensor& tensor) {
  const int64_t expected = size_bytes(tensor.type, tensor.elements());
  int64_t written = 0;
  tensor.write([&](const void* data, int64_t bytes) {
    written += bytes;
    file.write(data, bytes);
  });
  if (written != expected) throw ModelError("the tensor {} came as {} bytes; it should have {}", tensor.name, written, expected);
  pad(file, written);
}

}  // namespace

int64_t block_size(Type type) { return type == Type::q8_0 ? 32 : 1; }

int64_t size_bytes(Type type, int64_t elements) {
  if (type == Type::q8_0) return elements / 32 * 34;  // 32 integers and their scale in fp16
  return elements * (type == Type::fp32 ? 4 : 2);
}

int64_t Tensor::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

void write_file(const std::filesystem::path& path, const std::vector<Field>& fields, const std::vector<Tensor>& tensors) {
  const std::string head = head_of(fields, tensors);
  const std::filesystem::path aside = path.string() + ".tmp" + std::to_string(::getpid());
  try {
    base::OutputFile file(aside);
    file.write(head);
    pad(file, static_cast<int64_t>(head.size()));
    for (const auto& tensor : tensors) write_tensor(file, tensor);
    file.sync();
    file.close();
    if (::rename(aside.c_str(), path.c_str()) != 0)
      throw base::FileError("cannot rename {} to {}: {}", aside.string(), path.string(), std::strerror(errno));
  } catch (...) {
    ::unlink(aside.c_str());
    throw;
  }
  base::sync_directory(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

}  // namespace ingot::gguf
