// Damaged checkpoints: whatever happened to the files, nothing wrong is ever handed out, and the damage is named.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <random>
#include <set>

#include "base/error.h"
#include "checkpoint/load/verify.h"
#include "checkpoint/save/data_writer.h"
#include "checkpoint/tests/test_support.h"

namespace ingot::checkpoint {
namespace {

using tensor::DType;
using ::testing::HasSubstr;

class Corruption : public TemporaryFolder {
 protected:
  Corruption() : TemporaryFolder(memory_folder()) {}
  const Sample sample_ = Sample::usual(1);

  // Loads everything; the text of the error, or "" when all bytes came back right. Wrong bytes fail the test.
  std::string load_error(const fs::path& path) {
    try {
      EXPECT_TRUE(sample_.is_in(path)) << "loaded wrong data";
      EXPECT_EQ(Reader(path).extra("x"), "value");
      return "";
    } catch (const base::CheckpointError& error) {
      return error.what();
    }
  }
  fs::path saved(int64_t step = 1) { return save(folder, step, sample_.items(), {{"x", "value"}}, {.piece_limit_bytes = 30000}).path; }

  // A checkpoint of two data files, as two ranks would write it: even rows of the matrix here, odd ones there.
  fs::path saved_by_two(int64_t step, const std::string& bytes) {
    const fs::path path = folder / step_name(step);
    fs::create_directories(path);
    Metadata metadata{random_id(), step, {}, {}, {}};
    metadata.tensors.push_back({{"matrix", DType::uint8, {8, 100}}, {}});
    for (uint32_t file = 0; file < 2; ++file) {
      DataWriter writer(local_storage(), path, metadata.id, step, file);
      for (int64_t row = file; row < 8; row += 2) {
        metadata.tensors[0].pieces.push_back(writer.add_piece(metadata.tensors[0].tensor, {{row, 0}, {1, 100}},
                                                              reinterpret_cast<const std::byte*>(bytes.data()) + row * 100));
      }
      metadata.files.push_back(writer.finish());
    }
    put_content(path / kMetadataName, encode(metadata));
    return path;
  }
};

TEST_F(Corruption, any_flipped_bit_in_the_data_is_found_by_verify_and_never_loaded) {
  const fs::path path = saved();
  const std::string data = content_of(path / "data_00000.bin");
  std::mt19937_64 random(11);
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    // Every bit of the header, then samples of the rest.
    const size_t bit = round < 256 ? static_cast<size_t>(round) * 2 : random() % (data.size() * 8);
    std::string damaged = data;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    put_content(path / "data_00000.bin", damaged);
    const std::string error = load_error(path);
    const VerifySummary summary = verify(path);
    ASSERT_EQ(summary.damage.size(), 1u) << "bit " << bit;
    EXPECT_EQ(summary.damage[0].file, "data_00000.bin");
    if (!error.empty()) {
      ++refused;
      EXPECT_THAT(error, HasSubstr("data_00000.bin"));
      EXPECT_THAT(error, HasSubstr(summary.damage[0].tensor + summary.damage[0].extra));
    } else {
      EXPECT_THAT(summary.damage[0].description, HasSubstr("padding")) << "bit " << bit << " was loaded though it matters";
    }
  }
  EXPECT_GT(refused, 350);
}

TEST_F(Corruption, any_flipped_bit_in_the_metadata_is_refused) {
  const fs::path path = saved();
  const std::string metadata = content_of(path / kMetadataName);
  for (size_t bit = 0; bit < metadata.size() * 8; bit += 3) {
    std::string damaged = metadata;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    put_content(path / kMetadataName, damaged);
    EXPECT_THAT(load_error(path), HasSubstr("metadata.bin")) << bit;
  }
  EXPECT_EQ(verify(path).damage[0].file, "metadata.bin");
}

TEST_F(Corruption, truncated_grown_and_deleted_files_are_refused_by_name) {
  const fs::path path = saved();
  for (const char* name : {"metadata.bin", "data_00000.bin"}) {
    const std::string whole = content_of(path / name);
    for (size_t size = 0; size < whole.size(); size = size < 200 ? size + 1 : size + 997) {
      put_content(path / name, whole.substr(0, size));
      EXPECT_THAT(load_error(path), HasSubstr(name)) << size;
      EXPECT_FALSE(verify(path).sound());
    }
    put_content(path / name, whole + "x");
    EXPECT_THAT(load_error(path), HasSubstr(name));
    EXPECT_FALSE(verify(path).sound());
    fs::remove(path / name);
    EXPECT_THAT(load_error(path), HasSubstr(name));
    EXPECT_FALSE(verify(path).sound());
    EXPECT_FALSE(latest(folder)) << "a checkpoint without " << name << " was offered";
    put_content(path / name, whole);
    EXPECT_EQ(load_error(path), "");
  }
}

TEST_F(Corruption, lost_bytes_name_the_tensors_that_lay_in_them) {
  const fs::path path = saved();
  fs::resize_file(path / "data_00000.bin", 40000);
  const VerifySummary summary = verify(path);
  std::set<std::string> lost;
  for (const Damage& damage : summary.damage) lost.insert(damage.tensor + damage.extra);
  EXPECT_TRUE(lost.contains("layers.0.weight"));
  EXPECT_FALSE(lost.contains("x")) << "extras have a file of their own";
  fs::remove(path / "data_00000.bin");
  lost.clear();
  for (const Damage& damage : verify(path).damage) lost.insert(damage.tensor + damage.extra);
  EXPECT_EQ(lost, (std::set<std::string>{"layers.0.weight", "layers.1.weight", "mask", "scalar"}));
  fs::remove(path / "data_00001.bin");
  for (const Damage& damage : verify(path).damage) lost.insert(damage.tensor + damage.extra);
  EXPECT_TRUE(lost.contains("x"));
}

TEST_F(Corruption, swapped_and_mixed_files_are_refused) {
  const std::string one(800, 'a'), two(800, 'b');
  const fs::path first = saved_by_two(1, one), second = saved_by_two(2, two);
  EXPECT_TRUE(verify(first).sound());
  EXPECT_EQ(Reader(second).read("matrix"), std::vector<std::byte>(800, std::byte{'b'}));
  const auto expect_refused = [&](const std::string& words) {
    try {
      Reader reader(first);
      FAIL() << "accepted";
    } catch (const base::CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
    EXPECT_FALSE(verify(first).sound());
  };
  const auto swap_files = [&](const fs::path& a, const fs::path& b) {
    fs::rename(a, folder / "aside");
    fs::rename(b, a);
    fs::rename(folder / "aside", b);
  };
  swap_files(first / "data_00000.bin", first / "data_00001.bin");  // of the same size
  expect_refused("data_00000.bin does not begin with the header of file 0");
  swap_files(first / "data_00000.bin", first / "data_00001.bin");
  swap_files(first / "data_00001.bin", second / "data_00001.bin");  // of two steps
  expect_refused("of another checkpoint");
  swap_files(first / "data_00001.bin", second / "data_00001.bin");
  swap_files(first / "metadata.bin", second / "metadata.bin");
  expect_refused("the metadata of step 2, but the folder is called step_00000001");
  swap_files(first / "metadata.bin", second / "metadata.bin");
  EXPECT_TRUE(verify(first).sound());
  put_content(first / "data_00002.bin", "stranger");
  EXPECT_THAT(verify(first).damage.at(0).description, HasSubstr("does not belong"));
}

TEST_F(Corruption, same_step_saved_twice_cannot_be_mixed) {
  const fs::path path = saved_by_two(1, std::string(800, 'a'));
  const std::string old_file = content_of(path / "data_00001.bin");
  fs::remove_all(path);
  saved_by_two(1, std::string(800, 'b'));
  put_content(path / "data_00001.bin", old_file);
  EXPECT_THROW(Reader{path}, base::CheckpointError);
}

TEST_F(Corruption, symbolic_links_folders_and_devices_are_not_followed) {
  const fs::path path = saved();
  fs::rename(path / "data_00000.bin", folder / "elsewhere");
  fs::create_symlink(folder / "elsewhere", path / "data_00000.bin");
  EXPECT_THAT(load_error(path), HasSubstr("symbolic links are not followed"));
  fs::remove(path / "data_00000.bin");
  fs::create_directory(path / "data_00000.bin");
  EXPECT_THAT(load_error(path), HasSubstr("not a regular file"));
  fs::remove(path / "data_00000.bin");
  ASSERT_EQ(::mkfifo((path / "data_00000.bin").c_str(), 0600), 0);
  EXPECT_THAT(load_error(path), HasSubstr("not a regular file"));
  // Pruning never deletes through a link.
  fs::create_directory(folder / "precious");
  put_content(folder / "precious" / "file", "keep me");
  fs::create_directory_symlink(folder / "precious", folder / "step_00000000");
  fs::create_directory_symlink(folder / "precious", folder / ".step_00000009.tmp-0");
  saved(7);
  prune(folder, {.keep = 1});
  collect_leftovers(folder, 0);
  EXPECT_EQ(content_of(folder / "precious" / "file"), "keep me");
}

}  // namespace
}  // namespace ingot::checkpoint
