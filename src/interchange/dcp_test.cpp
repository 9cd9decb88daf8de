// Checkpoints that torch and Megatron-Core wrote (tests/oracles/make_dcp_fixtures.py), and what is written here.
#include "interchange/dcp.h"

#include <gmock/gmock.h>

#include <set>

#include "base/error.h"
#include "interchange/test_support.h"

namespace ingot::interchange {
namespace {

using nlohmann::json;
using tensor::Box;
using tensor::DType;
using ::testing::HasSubstr;

class Recorded : public ::testing::TestWithParam<const char*> {};

TEST_P(Recorded, all_tensors_and_any_boxes_of_them_have_the_bits_that_were_saved) {
  const json book = book_of(GetParam());
  const DcpReader reader(kFixtures / GetParam(), {Crc::always});
  ASSERT_EQ(reader.list().size(), book["tensors"].size());
  std::mt19937_64 random(1);
  for (const tensor::LogicalTensor& tensor : reader.list()) {
    ASSERT_TRUE(book["tensors"].contains(tensor.name)) << tensor.name;
    const json& entry = book["tensors"][tensor.name];
    EXPECT_EQ(tensor::name_of(tensor.dtype), entry["dtype"]);
    EXPECT_EQ(json(tensor.shape), entry["shape"]);
    const uint64_t id = entry["id"];
    EXPECT_EQ(reader.read(tensor.name), expected_elements(id, tensor, tensor::whole(tensor.shape))) << tensor.name;
    for (int i = 0; i < 30; ++i) {
      const Box box = random_box(tensor.shape, random);
      const auto expected = expected_elements(id, tensor, box);
      std::vector<std::byte> read(expected.size());
      reader.read(tensor.name, box, read.data());
      EXPECT_EQ(read, expected) << tensor.name << " at " << tensor::to_string(box.offset);
    }
  }
  reader.verify();
}

TEST_P(Recorded, objects_are_read_as_data) {
  const json book = book_of(GetParam());
  const DcpReader reader(kFixtures / GetParam());
  ASSERT_EQ(reader.objects().size(), book["objects"].size());
  for (const auto& [name, value] : book["objects"].items()) EXPECT_EQ(reader.object(name), value) << name;
}

TEST_P(Recorded, a_missing_data_file_is_named) {
  const fs::path copy = checkpoint::memory_folder() / ("ingot_dcp_missing_" + std::to_string(::getpid()));
  fs::remove_all(copy);
  fs::copy(kFixtures / GetParam(), copy);
  const std::string name = DcpReader(copy).metadata().files.back();
  fs::remove(copy / name);
  try {
    const DcpReader reader(copy);
    ADD_FAILURE();
  } catch (const base::CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr(name));
  }
  fs::remove(copy / ".metadata");
  EXPECT_THROW(DcpReader{copy}, base::CheckpointError);
  fs::remove_all(copy);
}

INSTANTIATE_TEST_SUITE_P(Dcp, Recorded, ::testing::Values("single", "files_per_item", "two_ranks", "four_ranks", "two_by_two", "megatron"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Megatron, common_values_and_layers_of_a_leading_axis_are_read) {
  const DcpReader reader(kFixtures / "megatron");
  const json common = reader.megatron_common();
  EXPECT_EQ(common["iteration"], 42);
  EXPECT_EQ(common["args"]["!class"], "argparse.Namespace");
  EXPECT_EQ(common["args"]["state"]["hidden_size"], 8);
  EXPECT_EQ(common["args"]["state"]["dtype"], json::parse(R"({"!global": "torch.bfloat16"})"));
  EXPECT_EQ(common["opt_param_scheduler"]["lr"], json::parse("[0.1, 0.2]"));
  EXPECT_EQ(reader.tensor("decoder.layers.mlp.linear_fc1.weight").shape, (tensor::Shape{4, 6, 3}));
  EXPECT_TRUE(DcpReader(kFixtures / "single").megatron_common().is_null());
}

TEST(Dcp, unknown_names_and_wrong_boxes_are_refused) {
  const DcpReader reader(kFixtures / "single");
  const auto error_of = [&](const std::string& name, const Box& box) -> std::string {
    std::byte unused[256];
    try {
      reader.read(name, box, unused);
    } catch (const base::CheckpointError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(error_of("transpose", {{0, 0}, {1, 1}}), HasSubstr("did you mean 'transposed'?"));
  EXPECT_THAT(error_of("transposed", {{0, 0}, {7, 1}}), HasSubstr("is not inside tensor 'transposed' of shape [6, 7]"));
  EXPECT_THAT(error_of("transposed", {{0}, {1}}), HasSubstr("is not inside"));
  EXPECT_THROW(reader.object("scalar"), base::CheckpointError);
}

// Tensors of which element i of tensor id is known, written and read here.
class Written : public checkpoint::TemporaryFolder {
 protected:
  Written() : TemporaryFolder(checkpoint::memory_folder()) {}
  std::vector<tensor::LogicalTensor> tensors_;
  void add(std::string name, DType dtype, tensor::Shape shape) { tensors_.push_back({std::move(name), dtype, std::move(shape)}); }
  DcpFill fill() const {
    return [this](const tensor::LogicalTensor& tensor, const Box& box, std::byte* destination) {
      const auto elements = expected_elements(id_of(tensor.name), tensor, box);
      std::copy(elements.begin(), elements.end(), destination);
    };
  }
  uint64_t id_of(const std::string& name) const { return std::hash<std::string>{}(name) % 1000; }
  void expect_written(const fs::path& path) const {
    const DcpReader reader(path, {Crc::always});
    EXPECT_EQ(reader.list().size(), tensors_.size());
    for (const auto& tensor : tensors_) {
      EXPECT_EQ(reader.tensor(tensor.name), tensor);
      EXPECT_EQ(reader.read(tensor.name), expected_elements(id_of(tensor.name), tensor, tensor::whole(tensor.shape))) << tensor.name;
    }
  }
  void add_usual() {
    for (int i = 0; i < 14; ++i) {
      const auto dtype = static_cast<DType>(i);
      add("dtypes." + std::string(tensor::name_of(dtype)), dtype, {3, 5});
    }
    add("matrix", DType::fp32, {50, 33});
    add("scalar", DType::bf16, {});
    add("empty", DType::int64, {4, 0, 2});
  }
};

TEST_F(Written, is_read_back_in_chunks_and_files_of_any_size) {
  add_usual();
  for (const auto& [chunk, file] : std::vector<std::pair<int64_t, int64_t>>{{1 << 20, 1 << 30}, {100, 1}, {1, 50000}, {1000, 10000}}) {
    const fs::path path = folder / fmt::format("{}-{}", chunk, file);
    write_dcp(path, tensors_, fill(), {{"text", "Grüße"}, {"binary", std::string("\0\xff\x80", 3)}}, {chunk, file});
    expect_written(path);
    const DcpReader reader(path);
    EXPECT_EQ(reader.objects(), (std::vector<std::string>{"binary", "text"}));
    EXPECT_EQ(reader.object_content("text"), "Grüße");
    EXPECT_EQ(reader.object_content("binary"), std::string("\0\xff\x80", 3));
    EXPECT_EQ(reader.metadata().files.size() > 1, file < 60000);
    reader.verify();
  }
}

TEST_F(Written, an_empty_checkpoint_is_one) {
  write_dcp(folder / "none", {}, fill());
  EXPECT_TRUE(DcpReader(folder / "none").list().empty());
}

TEST_F(Written, impossible_calls_are_refused_and_leave_nothing) {
  add("a", DType::fp32, {2});
  add("a", DType::fp32, {2});
  EXPECT_THROW(write_dcp(folder / "x", tensors_, fill()), base::CheckpointError);
  tensors_.pop_back();
  EXPECT_THROW(write_dcp(folder / "x", tensors_, fill(), {{"a", ""}}), base::CheckpointError);
  EXPECT_THROW(write_dcp(folder / "x", tensors_, fill(), {}, {0}), base::CheckpointError);
  write_dcp(folder / "x", tensors_, fill());
  EXPECT_THROW(write_dcp(folder / "x", tensors_, fill()), base::CheckpointError);
  expect_written(folder / "x");
  add("b", DType::fp32, {2});
  const DcpFill fails = [&](const tensor::LogicalTensor& tensor, const Box&, std::byte*) {
    if (tensor.name == "b") throw base::CheckpointError("no data for b");
  };
  EXPECT_THROW(write_dcp(folder / "y", tensors_, fails, {}, {1, 1}), base::CheckpointError);
  EXPECT_TRUE(fs::is_empty(folder / "y"));
}

// Fails the n-th call that changes a file.
class FailingCalls : public checkpoint::CallHook {
 public:
  explicit FailingCalls(int at) : left_(at) {}
  int before(checkpoint::Call call, const fs::path&, size_t&) override {
    using checkpoint::Call;
    if (call != Call::write && call != Call::sync && call != Call::open && call != Call::close) return 0;
    return left_-- == 0 ? ENOSPC : 0;
  }
  bool reached() const { return left_ < 0; }

 private:
  int left_;
};

TEST_F(Written, a_full_disk_at_any_moment_leaves_no_checkpoint_that_looks_complete) {
  add_usual();
  int failures = 0;
  for (int at = 0;; ++at) {
    const fs::path path = folder / std::to_string(at);
    FailingCalls hook(at);
    const checkpoint::PosixStorage storage(&hook);
    try {
      write_dcp(path, tensors_, fill(), {}, {100, 5000, &storage});
    } catch (const base::CheckpointError&) {
      ++failures;
      EXPECT_FALSE(is_dcp(path)) << at;
    }
    if (!hook.reached()) {
      expect_written(path);
      break;
    }
    fs::remove_all(path);
  }
  EXPECT_GT(failures, 20);
}

TEST_F(Written, only_the_bytes_needed_are_read) {
  add("large", DType::fp32, {2000, 1000});
  write_dcp(folder / "x", tensors_, fill(), {}, {int64_t{1} << 30});
  const DcpReader reader(folder / "x");
  std::vector<std::byte> out(8'000'000);
  const auto read_bytes = [&](const Box& box) {
    const int64_t before = reader.counters().read_bytes;
    reader.read("large", box, out.data());
    const auto expected = expected_elements(id_of("large"), tensors_[0], box);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out.begin()));
    return reader.counters().read_bytes - before;
  };
  EXPECT_EQ(read_bytes({{7, 0}, {3, 1000}}), 12000);  // rows
  EXPECT_EQ(read_bytes({{1999, 999}, {1, 1}}), 4);    // the last element
  EXPECT_EQ(read_bytes(tensor::whole({2000, 1000})), 8'000'000);
  EXPECT_LE(read_bytes({{0, 500}, {2000, 500}}), 8'000'000);  // half of each row: dense enough to read through
  EXPECT_LE(read_bytes({{0, 3}, {2000, 1}}), 8'000'000);
  EXPECT_LE(read_bytes({{5, 3}, {4, 2}}), 4 * 4000);
}

TEST_F(Written, crcs_are_compared_as_asked) {
  add("x", DType::fp32, {100, 10});
  write_dcp(folder / "x", tensors_, fill());
  const fs::path file = folder / "x" / "__0_0.distcp";
  std::string bytes = checkpoint::content_of(file);
  const auto elements = expected_elements(id_of("x"), tensors_[0], tensor::whole({100, 10}));
  const size_t begin = bytes.find(std::string(reinterpret_cast<const char*>(elements.data()), elements.size()));
  ASSERT_NE(begin, std::string::npos);
  bytes[begin + 2000] ^= 1;
  checkpoint::put_content(file, bytes);
  std::vector<std::byte> out(4000);
  const Box row{{3, 0}, {1, 10}}, whole = tensor::whole({100, 10});
  const auto fails = [&](Crc crc, const Box& box) {
    try {
      DcpReader(folder / "x", {crc}).read("x", box, out.data());
      return false;
    } catch (const base::CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr("CRC"));
      EXPECT_THAT(error.what(), HasSubstr("__0_0.distcp"));
      return true;
    }
  };
  EXPECT_FALSE(fails(Crc::ignore, whole));
  EXPECT_TRUE(fails(Crc::when_whole, whole));
  EXPECT_FALSE(fails(Crc::when_whole, row));
  EXPECT_TRUE(fails(Crc::always, row));
  EXPECT_THROW(DcpReader(folder / "x", {Crc::ignore}).verify(), base::CheckpointError);
}

TEST_F(Written, is_a_tensor_source) {
  add("b", DType::int16, {4, 6});
  add("a", DType::fp64, {3});
  write_dcp(folder / "x", tensors_, fill(), {}, {10});
  const auto source = open_dcp(folder / "x");
  ASSERT_EQ(source->list().size(), 2u);
  EXPECT_EQ(source->list()[0].name, "a");
  const Box run{{1, 2}, {1, 3}};
  std::vector<std::byte> out(6);
  source->read_run(tensors_[0], run, out.data());
  EXPECT_EQ(out, expected_elements(id_of("b"), tensors_[0], run));
  EXPECT_EQ(source->reader(), nullptr);
  EXPECT_EQ(source->path(), folder / "x");
}

class Damaged : public checkpoint::TemporaryFolder {
 protected:
  Damaged() : TemporaryFolder(checkpoint::memory_folder()) {}
  int refused_ = 0, read_ = 0;
  json book_;
  fs::path copy_of(const char* fixture) {
    book_ = book_of(fixture);
    const fs::path copy = folder / fixture;
    fs::copy(kFixtures / fixture, copy);
    return copy;
  }
  // Reads everything: an error, or the right bits under each known name.
  void attempt(const fs::path& path, const std::string& what, int64_t file_bytes) {
    MemoryPeak::reset();
    try {
      const DcpReader reader(path, {Crc::always});
      for (const tensor::LogicalTensor& tensor : reader.list()) {
        const auto read = reader.read(tensor.name);
        if (!book_["tensors"].contains(tensor.name)) continue;  // a name has no checksum
        const json& entry = book_["tensors"][tensor.name];
        EXPECT_EQ(json(tensor.shape), entry["shape"]) << what << " " << tensor.name;
        EXPECT_EQ(tensor::name_of(tensor.dtype), entry["dtype"]) << what << " " << tensor.name;
        EXPECT_EQ(read, expected_elements(entry["id"].get<uint64_t>(), tensor, tensor::whole(tensor.shape))) << what << " " << tensor.name;
      }
      for (const std::string& name : reader.objects()) reader.object(name);
      ++read_;
    } catch (const base::CheckpointError& error) {
      ++refused_;
      EXPECT_THAT(error.what(), HasSubstr(path.string())) << what;
    }
    EXPECT_LT(MemoryPeak::bytes(), (8 << 20) + 100 * file_bytes) << what;
  }
};

TEST_F(Damaged, every_truncation_of_the_metadata_is_refused) {
  for (const char* fixture : {"two_ranks", "files_per_item"}) {
    const fs::path path = copy_of(fixture);
    const std::string whole = checkpoint::content_of(path / ".metadata");
    for (size_t size = 0; size < whole.size(); ++size) {
      checkpoint::put_content(path / ".metadata", whole.substr(0, size));
      attempt(path, fmt::format("{} of {} bytes", fixture, size), static_cast<int64_t>(whole.size()));
    }
    EXPECT_EQ(refused_, static_cast<int>(whole.size()));
    EXPECT_EQ(read_, 0);
    refused_ = 0;
  }
}

TEST_F(Damaged, every_truncation_of_a_data_file_is_refused) {
  const fs::path path = copy_of("files_per_item");
  for (const char* name : {"__0_1.distcp", "__0_3.distcp"}) {
    const std::string whole = checkpoint::content_of(path / name);
    for (size_t size = 0; size < whole.size(); ++size) {
      checkpoint::put_content(path / name, whole.substr(0, size));
      attempt(path, fmt::format("{} of {} bytes", name, size), static_cast<int64_t>(whole.size()));
    }
    EXPECT_EQ(refused_, static_cast<int>(whole.size()));
    EXPECT_EQ(read_, 0);
    refused_ = 0;
    checkpoint::put_content(path / name, whole);
  }
}

TEST_F(Damaged, any_changed_bytes_of_the_metadata_give_an_error_or_the_right_bits) {
  std::mt19937_64 random(7);
  for (const char* fixture : {"two_ranks", "two_by_two", "files_per_item", "megatron"}) {
    const fs::path path = copy_of(fixture);
    const std::string whole = checkpoint::content_of(path / ".metadata");
    for (int i = 0; i < 700; ++i) {
      checkpoint::put_content(path / ".metadata", damaged(whole, random));
      attempt(path, fmt::format("{} {}", fixture, i), static_cast<int64_t>(whole.size()));
    }
  }
  EXPECT_GT(refused_, 1000);
  EXPECT_GT(read_, 100);
}

TEST_F(Damaged, any_changed_bytes_of_a_data_file_give_an_error_or_the_right_bits) {
  std::mt19937_64 random(8);
  for (const char* fixture : {"files_per_item", "two_ranks"}) {
    const fs::path path = copy_of(fixture);
    const std::vector<std::string> files = DcpReader(path).metadata().files;
    for (const std::string& name : files) {
      const std::string whole = checkpoint::content_of(path / name);
      for (int i = 0; i < 300; ++i) {
        checkpoint::put_content(path / name, damaged(whole, random));
        attempt(path, fmt::format("{} {} {}", fixture, name, i), static_cast<int64_t>(whole.size()));
      }
      checkpoint::put_content(path / name, whole);
    }
  }
  EXPECT_GT(refused_, 800);
  EXPECT_GT(read_, 100);
}

// A folder whose metadata says what no writer would.
class Hostile : public checkpoint::TemporaryFolder {
 protected:
  std::string error_of(const std::function<void(DcpMetadata&)>& change) {
    const fs::path path = folder / "x";
    fs::remove_all(path);
    write_dcp(path, {{"x", DType::fp32, {4, 4}}, {"y", DType::fp32, {4}}},
              [](const tensor::LogicalTensor&, const Box& box, std::byte* to) {
                std::memset(to, 1, static_cast<size_t>(tensor::element_count(box.extent) * 4));
              },
              {}, {32});
    DcpMetadata metadata = DcpReader(path).metadata();
    change(metadata);
    fs::remove(path / ".metadata");
    checkpoint::put_content(path / ".metadata", encode_dcp(metadata, {}));
    try {
      const DcpReader reader(path);
      for (const auto& tensor : reader.list()) reader.read(tensor.name);
      return "";
    } catch (const base::CheckpointError& error) {
      return error.what();
    }
  }
};

TEST_F(Hostile, metadata_that_cannot_be_is_refused_by_name) {
  EXPECT_EQ(error_of([](DcpMetadata&) {}), "");
  EXPECT_THAT(error_of([](DcpMetadata& m) { m.tensors[0].chunks.pop_back(); }),
              HasSubstr("tensor 'x' of shape [4, 4]: elements in the box"));
  EXPECT_THAT(error_of([](DcpMetadata& m) { m.tensors[0].chunks[1].box.offset[0] = 1; }), HasSubstr("tensor 'x'"));
  EXPECT_THAT(error_of([](DcpMetadata& m) { m.tensors[0].chunks[1].box = m.tensors[0].chunks[0].box; }),
              HasSubstr("two archives for the chunk at [0, 0]"));
  EXPECT_THAT(error_of([](DcpMetadata& m) { m.tensors[0].chunks[1].place = m.tensors[0].chunks[0].place; }), HasSubstr("archives overlap"));
  EXPECT_THAT(error_of([](DcpMetadata& m) { std::swap(m.tensors[0].chunks[1].place, m.tensors[1].chunks[0].place); }),
              HasSubstr("is stored at byte"));
  EXPECT_THAT(error_of([](DcpMetadata& m) { m.tensors[0].tensor.dtype = DType::int32; }),
              HasSubstr("should be int32 [2, 4], but fp32 [2, 4] is stored"));
  EXPECT_THAT(error_of([](DcpMetadata& m) { m.tensors[0].tensor.shape = {int64_t{1} << 62, 4}; }), HasSubstr("is impossible"));
  EXPECT_THAT(error_of([](DcpMetadata& m) { m.tensors[1].tensor.shape = m.tensors[1].chunks[0].box.extent = {int64_t{1} << 40}; }),
              HasSubstr("only"));
  EXPECT_THAT(error_of([](DcpMetadata& m) { m.files[0] = "../x"; }), HasSubstr("not the plain name of a file"));
  EXPECT_THAT(error_of([](DcpMetadata& m) { m.files[0] = "absent"; }), HasSubstr("absent is missing"));
  EXPECT_THAT(error_of([](DcpMetadata& m) { m.tensors[1].chunks[0].place.offset += 1 << 20; }), HasSubstr("truncated"));
  EXPECT_THAT(error_of([](DcpMetadata& m) { m.tensors[1].chunks[0].place.offset = INT64_MAX; }), HasSubstr("not possible"));
  EXPECT_THAT(error_of([](DcpMetadata& m) { m.tensors[1].tensor.name = "x"; }), HasSubstr("x"));
  EXPECT_THAT(error_of([](DcpMetadata& m) { m.tensors[1].tensor.name = std::string(5000, 'n'); }), HasSubstr("5000 bytes"));
}

}  // namespace
}  // namespace ingot::interchange
