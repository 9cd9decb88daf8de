// The format document is good enough to write a reader from: tests/oracles/read_checkpoint.py was.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <cstdlib>

#include "checkpoint/save/data_writer.h"
#include "checkpoint/tests/test_support.h"

namespace ingot::checkpoint {
namespace {

constexpr const char* kReader = "tests/oracles/read_checkpoint.py";

class Document : public TemporaryFolder {
 protected:
  // Exit status of the independent reader; its output is in `folder`/output.
  int run(const fs::path& checkpoint) const {
    fs::create_directories(folder / "dump");
    const std::string command = fmt::format("python3 {} '{}' '{}' > '{}' 2>&1", kReader, checkpoint.string(), (folder / "dump").string(),
                                            (folder / "output").string());
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

TEST_F(Document, independent_reader_in_python_gets_the_same_bytes) {
  ASSERT_TRUE(fs::exists(kReader)) << "run from the root of the repository";
  Sample sample(5);
  for (int i = 0; i <= static_cast<int>(tensor::DType::complex128); ++i) {
    const auto dtype = static_cast<tensor::DType>(i);
    sample.add(fmt::format("t{:02}.matrix", i), dtype, {9, 4, 5})
        .add(fmt::format("t{:02}.scalar", i), dtype, {})
        .add(fmt::format("t{:02}.zero", i), dtype, {0, 2});
  }
  sample.add("zz.large", tensor::DType::fp32, {300, 100});
  const std::map<std::string, std::string> extras = {{"config", "seed = 1\n"}, {"cursor", "{}"}};
  const auto report = save(folder, 1234, sample.items(), extras, {.piece_limit_bytes = 70000});
  ASSERT_EQ(run(report.path), 0) << content_of(folder / "output");
  EXPECT_THAT(content_of(folder / "output"), ::testing::HasSubstr("step 1234 id " + to_string(report.id)));
  EXPECT_THAT(content_of(folder / "output"), ::testing::HasSubstr("tensor zz.large fp32 [300, 100] 2 pieces"));
  size_t number = 0;
  for (const auto& [tensor, bytes] : sample.tensors())  // their names rise in this order
    EXPECT_EQ(content_of(folder / "dump" / fmt::format("tensor_{}.bin", number++)), bytes) << tensor.name;
  number = 0;
  for (const auto& [name, content] : extras)
    EXPECT_EQ(content_of(folder / "dump" / fmt::format("extra_{}.bin", number++)), content) << name;
}

// Shards that are neither rows nor in order, in three files, as ranks of a tensor-parallel ZeRO run would write them.
TEST_F(Document, independent_reader_joins_the_files_of_several_writers) {
  const fs::path path = folder / "step_00000002";
  fs::create_directories(path);
  std::vector<int32_t> values(6 * 7);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i * 1000003);
  Metadata metadata{random_id(), 2, {}, {}, {}};
  metadata.tensors.push_back({{"x", tensor::DType::int32, {6, 7}}, {}});
  const auto write = [&](DataWriter& writer, const Box& box) {
    std::vector<int32_t> part(static_cast<size_t>(tensor::element_count(box.extent)));
    copy_box(reinterpret_cast<const std::byte*>(values.data()), tensor::whole({6, 7}), reinterpret_cast<std::byte*>(part.data()), box, box,
             4);
    metadata.tensors[0].pieces.push_back(
        writer.add_piece(metadata.tensors[0].tensor, box, reinterpret_cast<const std::byte*>(part.data())));
  };
  DataWriter first(local_storage(), path, metadata.id, 2, 0), second(local_storage(), path, metadata.id, 2, 1),
      third(local_storage(), path, metadata.id, 2, 2);
  for (const Box& box : tensor::boxes_of_flat_slice({6, 3}, 4, 18)) write(second, box);  // of columns 0..2
  for (const Box& box : tensor::boxes_of_flat_slice({6, 3}, 0, 4)) write(first, box);
  write(third, {{0, 3}, {6, 4}});
  for (DataWriter* writer : {&first, &second, &third}) metadata.files.push_back(writer->finish());
  put_content(path / kMetadataName, encode(metadata));

  ASSERT_EQ(run(path), 0) << content_of(folder / "output");
  const std::string expected(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  EXPECT_EQ(content_of(folder / "dump" / "tensor_0.bin"), expected);
  const auto read = Reader(path).read("x");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(read.data()), read.size()), expected);
  std::string data = content_of(path / "data_00001.bin");
  data[20] = static_cast<char>(data[20] ^ 1);
  put_content(path / "data_00001.bin", data);
  EXPECT_EQ(run(path), 1) << "the reader does not look at ids";
}

}  // namespace
}  // namespace ingot::checkpoint
