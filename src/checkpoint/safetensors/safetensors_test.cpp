#include "checkpoint/safetensors/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>

#include "base/error.h"

namespace ingot::checkpoint {
namespace {

using tensor::DType;
using ::testing::HasSubstr;

// Written by the reference implementation (Python safetensors 0.8.0): safetensors.torch.save of one tensor per dtype.
constexpr std::string_view kRecordedHeader =
    R"({"__metadata__":{"format":"pt","note":"größer"},"i64":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
    R"("f64":{"dtype":"F64","shape":[2],"data_offsets":[8,24]},"empty":{"dtype":"F32","shape":[0,3],"data_offsets":[24,24]},)"
    R"("f32":{"dtype":"F32","shape":[2,3],"data_offsets":[24,48]},"i32":{"dtype":"I32","shape":[1],"data_offsets":[48,52]},)"
    R"("bf16":{"dtype":"BF16","shape":[2],"data_offsets":[52,56]},"f16":{"dtype":"F16","shape":[1],"data_offsets":[56,58]},)"
    R"("i16":{"dtype":"I16","shape":[1],"data_offsets":[58,60]},"e4m3":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[60,63]},)"
    R"("e5m2":{"dtype":"F8_E5M2","shape":[1],"data_offsets":[63,64]},"i8":{"dtype":"I8","shape":[1],"data_offsets":[64,65]},)"
    R"("u8":{"dtype":"U8","shape":[1],"data_offsets":[65,66]},"bool":{"dtype":"BOOL","shape":[2],"data_offsets":[66,68]}}     )";
constexpr std::string_view kRecordedData =
    "f9ffffffffffffff000000000000f83f00000000000000800000803f0000004000004040000080400000a0400000c040ffffff7f"
    "803f00c00038feff3840c83cffff0100";

std::string from_hex(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i < hex.size(); i += 2) out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return out;
}

std::string packed(std::string_view header, std::string_view data) {
  std::string out(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(out.data(), &size, 8);
  return out.append(header).append(data);
}

std::string text_of(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

SafetensorsItem item(std::string name, DType dtype, tensor::Shape shape, const std::string& bytes) {
  return {{std::move(name), dtype, std::move(shape)}, [&bytes] { return std::as_bytes(std::span(bytes)); }};
}

class Safetensors : public ::testing::Test {
 protected:
  fs::path folder = fs::temp_directory_path() / ("ingot_safetensors_" + std::to_string(::getpid()));
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }

  fs::path put(const std::string& name, std::string_view content) {
    fs::remove(folder / name);  // truncating a file in use makes some file systems flush it: slow
    std::ofstream(folder / name, std::ios::binary) << content;
    return folder / name;
  }
  void expect_refused(std::string_view header, std::string_view data, const std::string& words) {
    const fs::path file = put("hostile.safetensors", packed(header, data));
    try {
      SafetensorsReader reader(file);
      FAIL() << "accepted: " << header;
    } catch (const base::CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr(words)) << header;
      EXPECT_THAT(error.what(), HasSubstr("hostile.safetensors"));
    }
  }
};

TEST_F(Safetensors, file_of_the_reference_implementation_is_read_with_every_dtype) {
  const SafetensorsReader reader(put("a.safetensors", packed(kRecordedHeader, from_hex(kRecordedData))));
  ASSERT_EQ(reader.tensors().size(), 13u);
  EXPECT_EQ(reader.tensors().front().name, "bf16");
  EXPECT_EQ(reader.metadata().at("note"), "größer");
  EXPECT_EQ(reader.tensor("f32"), (tensor::LogicalTensor{"f32", DType::fp32, {2, 3}}));
  std::array<float, 6> values{};
  std::memcpy(values.data(), reader.bytes("f32").data(), sizeof(values));
  EXPECT_THAT(values, ::testing::ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(reader.tensor("i64").shape, tensor::Shape{});
  EXPECT_EQ(text_of(reader.bytes("i64")), from_hex("f9ffffffffffffff"));
  EXPECT_EQ(text_of(reader.bytes("bf16")), from_hex("803f00c0"));
  EXPECT_EQ(text_of(reader.bytes("e4m3")), from_hex("3840c8"));
  EXPECT_EQ(text_of(reader.bytes("bool")), from_hex("0100"));
  EXPECT_TRUE(reader.bytes("empty").empty());
  EXPECT_EQ(reader.tensor("empty").shape, (tensor::Shape{0, 3}));
}

TEST_F(Safetensors, written_file_equals_the_reference_byte_for_byte) {
  const std::string file = packed(kRecordedHeader, from_hex(kRecordedData));
  const SafetensorsReader reader(put("a.safetensors", file));
  std::vector<SafetensorsItem> items;
  for (const char* name : {"i64", "f64", "empty", "f32", "i32", "bf16", "f16", "i16", "e4m3", "e5m2", "i8", "u8", "bool"})
    items.push_back({reader.tensor(name), [&reader, name] { return reader.bytes(name); }});
  write_safetensors(folder / "b.safetensors", items, reader.metadata());
  EXPECT_EQ(base::read_file(folder / "b.safetensors"), file);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 2) << "something was left aside";
}

TEST_F(Safetensors, shards_follow_the_limit_and_an_earlier_export_leaves_nothing_behind) {
  const std::string ten(10, 'a'), thirty(30, 'b');
  const std::vector<SafetensorsItem> items = {item("x", DType::uint8, {10}, ten), item("y", DType::uint8, {2, 5}, ten),
                                              item("big", DType::int8, {30}, thirty), item("z", DType::boolean, {10}, ten)};
  write_safetensors_folder(folder, items, 1000);
  EXPECT_EQ(SafetensorsReader(folder).tensors().size(), 4u);
  const auto names = write_safetensors_folder(folder, items, 25);
  EXPECT_THAT(names, ::testing::ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                            "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(folder / "model.safetensors"));
  const SafetensorsReader reader(folder);
  EXPECT_EQ(reader.file_of("y").filename(), "model-00001-of-00003.safetensors");
  EXPECT_EQ(text_of(reader.bytes("big")), thirty);
  EXPECT_EQ(reader.data_bytes(), 60);
  write_safetensors_folder(folder, items, 1000);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
}

TEST_F(Safetensors, failing_writer_leaves_the_old_file_and_nothing_aside) {
  const std::string ten(10, 'a');
  write_safetensors(folder / "m.safetensors", {item("x", DType::uint8, {10}, ten)});
  const std::string before = base::read_file(folder / "m.safetensors");
  EXPECT_THROW(write_safetensors(folder / "m.safetensors", {item("x", DType::uint8, {11}, ten)}), base::CheckpointError);
  EXPECT_THROW(write_safetensors(folder / "m.safetensors", {item("x", DType::uint8, {10}, ten), item("x", DType::uint8, {10}, ten)}),
               base::CheckpointError);
  EXPECT_THROW(write_safetensors(folder / "m.safetensors", {item("x", DType::complex128, {1}, ten)}), base::CheckpointError);
  EXPECT_EQ(base::read_file(folder / "m.safetensors"), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
}

TEST_F(Safetensors, hostile_headers_are_refused_with_file_and_tensor) {
  const std::string data(8, '\0');
  expect_refused(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", data,
                 "twice");
  expect_refused(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"y":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", data,
                 "overlap");
  expect_refused(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", data, "hole");
  expect_refused(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", data, "follow the last");
  expect_refused(R"({"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", data, "truncated");
  expect_refused(R"({"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", data, "does not fit");
  expect_refused(R"({"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", data, "tensor 'x'");
  expect_refused(R"({"x":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", data, "tensor 'x'");
  expect_refused(R"({"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", data, "impossible");
  expect_refused(R"({"x":{"dtype":"F64","shape":[2305843009213693953],"data_offsets":[0,8]}})", data, "does not fit");
  expect_refused(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", data, "tensor 'x'");
  expect_refused(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})", data, "63 bits");
  expect_refused(R"({"x":{"dtype":"F4","shape":[2],"data_offsets":[0,8]}})", data, "F4");
  expect_refused(R"({"x":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})", data, "wrong form");
  expect_refused(R"({"x":{"dtype":"F32","shape":[2]}})", data, "not described");
  expect_refused(R"({"__metadata__":{"format":1}})", "", "not a text");
  expect_refused(R"({"x":[[[[[[[[[[[[]]]]]]]]]]]]})", "", "nested");
  expect_refused(R"({"x":)", "", "cannot be read");
  expect_refused("[]", "", "does not begin");
  expect_refused("{\"\xff\":1}", "", "cannot be read");
}

TEST_F(Safetensors, truncation_at_every_length_and_wrong_files_are_refused) {
  const std::string whole = packed(kRecordedHeader, from_hex(kRecordedData));
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW(SafetensorsReader(put("cut.safetensors", whole.substr(0, size))), base::CheckpointError) << size;
  EXPECT_THROW(SafetensorsReader(put("long.safetensors", whole + '\0')), base::CheckpointError);
  EXPECT_THROW(SafetensorsReader(put("huge.safetensors", std::string(8, '\xff') + whole)), base::CheckpointError);
  EXPECT_THROW(SafetensorsReader(put("text.safetensors", "hello, this is not a file of tensors")), base::CheckpointError);
  EXPECT_THROW(SafetensorsReader{folder}, base::CheckpointError);
  EXPECT_THROW(SafetensorsReader(folder / "none.safetensors"), base::FileError);
}

TEST_F(Safetensors, index_must_agree_with_its_shards) {
  const std::string x = packed(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "1");
  const std::string y = packed(R"({"y":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "2");
  put("a.safetensors", x);
  put("b.safetensors", y);
  const auto refused = [&](const std::string& map, const std::string& words) {
    put("model.safetensors.index.json", R"({"weight_map":)" + map + "}");
    try {
      SafetensorsReader reader(folder);
      FAIL() << "accepted: " << map;
    } catch (const base::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(words)) << map;
    }
  };
  refused(R"({"x":"a.safetensors","y":"a.safetensors"})", "'y' is not in a.safetensors");
  refused(R"({"x":"b.safetensors","y":"b.safetensors"})", "'x' is not in b.safetensors");
  refused(R"({"x":"a.safetensors","z":"b.safetensors"})", "'z'");
  refused(R"({"y":"a.safetensors","x":"b.safetensors"})", "is not in");
  refused(R"({"x":"../a.safetensors"})", "plain name");
  refused(R"({"x":"/etc/passwd"})", "plain name");
  refused(R"({"x":5})", "plain name");
  refused(R"({"x":"c.safetensors"})", "c.safetensors");
  refused(R"([])", "weight_map");
  put("b.safetensors", x);
  refused(R"({"x":"a.safetensors","y":"b.safetensors"})", "'x' is also in");
  put("b.safetensors", y);
  put("model.safetensors.index.json", R"({"weight_map":{"x":"a.safetensors","y":"b.safetensors"}})");
  EXPECT_EQ(SafetensorsReader(folder).tensors().size(), 2u);
}

TEST_F(Safetensors, unknown_tensor_is_refused_with_the_nearest_name) {
  const SafetensorsReader reader(
      put("a.safetensors", packed(R"({"layers.0.weight":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "1")));
  try {
    reader.bytes("layers.0.weigth");
    FAIL();
  } catch (const base::CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean 'layers.0.weight'"));
  }
}

// Whatever bytes a file holds, the reader either throws an ingot error or hands out spans inside it.
TEST_F(Safetensors, fuzz_mutated_files_never_read_out_of_bounds) {
  const std::string whole = packed(kRecordedHeader, from_hex(kRecordedData));
  std::mt19937_64 random(20261121);
  const std::string_view interesting = "{}[]\",:0123456789-.eE\\\x00\xff";
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string mutated = whole;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const size_t at = random() % mutated.size(), length = random() % 12;
      const auto byte = static_cast<char>(random() % 2 ? interesting[random() % interesting.size()] : random());
      switch (random() % 4) {
        case 0: mutated[at] = byte; break;
        case 1: mutated.erase(at, length); break;
        case 2: mutated.insert(at, length, byte); break;
        default: mutated.insert(at, mutated.substr(random() % mutated.size(), length));
      }
      if (mutated.empty()) mutated = "x";
    }
    try {
      const SafetensorsReader reader(put("fuzz.safetensors", mutated));
      size_t sum = 0;
      for (const auto& one : reader.tensors()) {
        for (const std::byte byte : reader.bytes(one.name)) sum += static_cast<size_t>(byte);
      }
      accepted += sum > 0;
    } catch (const base::Error&) {
    }
  }
  EXPECT_GT(accepted, 0) << "the mutations never get past the header check";
}

}  // namespace
}  // namespace ingot::checkpoint
