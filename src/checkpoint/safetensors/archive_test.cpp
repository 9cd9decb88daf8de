#include "checkpoint/safetensors/archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "base/error.h"
#include "checkpoint/commands.h"

namespace ingot::checkpoint {
namespace {

using tensor::DType;
using ::testing::HasSubstr;

class Archive : public ::testing::Test {
 protected:
  fs::path folder = fs::temp_directory_path() / ("ingot_archive_" + std::to_string(::getpid()));
  fs::path file = folder / "m.safetensors";
  // 40, 3 and 130 bytes: none a multiple of 64.
  std::string ten = std::string(40, 'a'), odd = "xyz", many = std::string(130, 'b');
  std::map<std::string, std::string> files = {{"tokenizer.json", "{\"ö\": 1}"}, {"empty", ""}, {"bytes", std::string("\0\xff\n", 3)}};
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }

  static SafetensorsItem item(std::string name, DType dtype, tensor::Shape shape, const std::string& bytes) {
    return {{std::move(name), dtype, std::move(shape)}, [&bytes] { return std::as_bytes(std::span(bytes)); }};
  }
  void write() {
    write_archive(file, {item("w", DType::fp32, {10}, ten), item("a", DType::uint8, {3}, odd), item("m", DType::bf16, {65}, many)}, files,
                  {{"note", "größer"}});
  }
  std::string content() const { return base::read_file(file); }
  void put(const std::string& bytes) const { std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes; }
  int status_of_verify(std::string& printed) const {
    std::ostringstream out;
    const int status = verify(VerifyOptions{.path = file}, out);
    printed = out.str();
    return status;
  }
};

TEST_F(Archive, every_tensor_begins_at_a_multiple_of_64_bytes_and_files_come_back) {
  write();
  const SafetensorsReader reader(file);
  EXPECT_TRUE(is_archive(reader));
  for (const auto& tensor : reader.tensors()) {
    if (tensor.name.starts_with("ingot/padding")) continue;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(reader.bytes(tensor.name).data()) % 64, 0u) << tensor.name;
  }
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(reader.bytes("m").data()), 130), many);
  EXPECT_EQ(reader.metadata().at("note"), "größer");
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  EXPECT_EQ(files_in(reader), files);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1) << "something was left aside";
}

TEST_F(Archive, a_changed_byte_of_any_tensor_file_or_metadata_is_found_and_named) {
  write();
  std::string printed;
  EXPECT_EQ(status_of_verify(printed), 0) << printed;
  EXPECT_THAT(printed, HasSubstr("sound"));
  const auto whole = content();
  const auto damaged_at = [&](size_t at, const std::string& words) {
    auto bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    put(bytes);
    EXPECT_EQ(status_of_verify(printed), 3) << words;
    EXPECT_THAT(printed, HasSubstr(words));
  };
  damaged_at(whole.find(ten), "tensor 'w'");
  damaged_at(whole.find(many) + 129, "tensor 'm'");
  damaged_at(whole.find("{\"ö\""), "ingot/files/tokenizer.json");
  damaged_at(whole.find(ten) + 41, "ingot/padding/0");
  damaged_at(whole.find("größer"), "metadata");
  damaged_at(whole.size() - 1, "ingot/");
}

TEST_F(Archive, a_file_without_digests_is_refused_or_damaged) {
  write_safetensors(file, {item("w", DType::fp32, {10}, ten)});
  std::string printed;
  EXPECT_THROW(status_of_verify(printed), base::CheckpointError);
  write_safetensors(file, {item("w", DType::fp32, {10}, ten)}, {{"ingot_archive", "1"}});
  EXPECT_EQ(status_of_verify(printed), 3);
  EXPECT_THAT(printed, HasSubstr("digests are missing"));
}

TEST_F(Archive, names_of_files_are_plain_and_names_of_tensors_are_not_its_own) {
  for (const char* name : {"../x", "a/b", "..", ""}) {
    write_archive(file, {}, {{name, "1"}}, {});
    EXPECT_THROW(files_in(SafetensorsReader(file)), base::CheckpointError) << name;
  }
  EXPECT_THROW(write_archive(file, {item("ingot/other", DType::fp32, {10}, ten)}, {}, {}), base::CheckpointError);
}

TEST_F(Archive, a_failed_write_leaves_the_file_before_and_nothing_aside) {
  write();
  const auto before = content();
  const SafetensorsItem failing = {{"x", DType::uint8, {3}}, []() -> std::span<const std::byte> { throw base::ModelError("no value"); }};
  EXPECT_THROW(write_archive(file, {item("w", DType::fp32, {10}, ten), failing}, files, {}), base::ModelError);
  EXPECT_THROW(write_archive(file, {item("w", DType::fp32, {9}, ten)}, files, {}), base::CheckpointError);
  EXPECT_EQ(content(), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
}

TEST_F(Archive, what_is_written_to_the_spans_stays_in_the_process) {
  write();
  const auto before = content();
  SafetensorsReader reader(file);
  reader.allow_private_writes();
  auto* first = const_cast<std::byte*>(reader.bytes("w").data());
  *first = std::byte{0x7f};
  EXPECT_EQ(reader.bytes("w")[0], std::byte{0x7f});
  EXPECT_EQ(content(), before);
}

}  // namespace
}  // namespace ingot::checkpoint
