// Damaged checkpoints that several ranks wrote, loaded by several ranks: nothing wrong is handed out on any of them, and all name the same
// file and tensor.
#include <gmock/gmock.h>

#include <set>

#include "base/error.h"
#include "checkpoint/load/load.h"
#include "checkpoint/load/verify.h"
#include "checkpoint/tests/test_team.h"

namespace ingot::checkpoint {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kRanks = 2;

class TeamCorruption : public TemporaryFolder {
 protected:
  TeamCorruption() : TemporaryFolder(memory_folder()) {}
  const Sample sample_ = mixed_sample(1);

  fs::path saved(const fs::path& place, int64_t step = 1, const Sample* sample = nullptr, std::optional<CheckpointId> id = {}) const {
    const auto errors = run_team(kRanks, [&](const Team& team) {
      save(place, step, mixed_items(sample ? *sample : sample_, team.rank(), team.size()),
           {{fmt::format("of rank {}", team.rank()), "note"}},
           {.piece_limit_bytes = 1500, .file_limit_bytes = 6000, .id = id, .team = &team});
    });
    EXPECT_THAT(errors, Each(""));
    return place / step_name(step);
  }

  // Both ranks load all tensors, so that each gets from the other what it has not read itself, and rank 0 all extras. What they hear, the
  // same on both; "" when all bytes came back right. Wrong bytes fail the test.
  std::string load_error(const fs::path& path) const {
    const auto errors = run_team(kRanks, [&](const Team& team) {
      const TeamReader reader(path, {.batch_bytes = 4000, .threads = 2, .team = &team});
      std::vector<std::string> loaded;
      std::vector<LoadItem> items;
      for (const auto& [tensor, bytes] : sample_.tensors()) {
        loaded.emplace_back(bytes.size(), '\x5a');
        items.push_back({tensor.name, tensor::whole(tensor.shape), reinterpret_cast<std::byte*>(loaded.back().data())});
      }
      reader.load(items);
      for (size_t i = 0; i < loaded.size(); ++i) EXPECT_EQ(loaded[i], sample_.tensors()[i].second) << "wrong data was loaded";
      for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(reader.extra(fmt::format("of rank {}", rank)), "note");
    });
    EXPECT_EQ(errors[0], errors[1]) << "all hear the same";
    return errors[0];
  }
  void expect_refused(const fs::path& path, const std::string& file) const {
    EXPECT_THAT(load_error(path), HasSubstr(file));
    const auto summary = verify(path);
    ASSERT_FALSE(summary.sound());
    std::set<std::string> files;
    for (const auto& damage : summary.damage) files.insert(damage.file);
    EXPECT_TRUE(files.contains(file)) << "verify names " << ::testing::PrintToString(files);
  }
  static void swap_files(const fs::path& a, const fs::path& b) {
    const auto content = content_of(a);
    put_content(a, content_of(b));
    put_content(b, content);
  }
  static std::vector<std::string> files_of(const fs::path& path) { return names_in(path); }
};

TEST_F(TeamCorruption, any_flipped_bit_is_refused_on_all_ranks_with_file_and_tensor) {
  const fs::path path = saved(folder);
  const Metadata metadata = load_metadata(path);
  const auto ranges = ranges_of(metadata);
  std::map<std::string, int> hits;
  for (size_t file = 0; file < metadata.files.size(); ++file) {
    const auto& name = metadata.files[file].name;
    const std::string whole = content_of(path / name);
    const size_t bits = whole.size() * 8, stride = bits / (base::tests_run_at_night() ? 3000 : 100) | 1;
    for (size_t bit = 0; bit < bits; bit += bit < 512 ? 11 : stride) {
      SCOPED_TRACE(fmt::format("{} bit {}", name, bit));
      std::string damaged = whole;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
      put_content(path / name, damaged);
      const auto at = static_cast<int64_t>(bit / 8);
      const auto range =
          std::find_if(ranges[file].begin(), ranges[file].end(), [&](const Range& r) { return r.begin <= at && at < r.end; });
      const std::string error = load_error(path);
      const auto summary = verify(path);
      ASSERT_EQ(summary.damage.size(), 1u);
      EXPECT_EQ(summary.damage[0].file, name);
      if (range != ranges[file].end()) {
        ++hits[range->is_tensor ? "tensor" : "extra"];
        EXPECT_EQ(summary.damage[0].tensor + summary.damage[0].extra, *range->owner);
        EXPECT_THAT(error, HasSubstr(name));
        EXPECT_THAT(error, HasSubstr("'" + *range->owner + "'"));
      } else if (at < kDataHeaderBytes) {
        ++hits["header"];
        EXPECT_THAT(error, HasSubstr(name));
      } else {
        ++hits["padding"];
        EXPECT_THAT(summary.damage[0].description, HasSubstr("padding"));
        EXPECT_EQ(error, "") << "padding holds nothing that is loaded";
      }
      if (HasFailure()) return;
    }
    put_content(path / name, whole);
  }
  for (const char* region : {"header", "tensor", "extra", "padding"}) EXPECT_GT(hits[region], 5) << region;
  EXPECT_EQ(load_error(path), "");
}

TEST_F(TeamCorruption, any_flipped_bit_in_the_metadata_is_refused_on_all_ranks) {
  const fs::path path = saved(folder);
  const std::string whole = content_of(path / kMetadataName);
  for (size_t bit = 0; bit < whole.size() * 8; bit += base::tests_run_at_night() ? 1 : bit < 512 ? 3 : 37) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    put_content(path / kMetadataName, damaged);
    expect_refused(path, kMetadataName);
    if (HasFailure()) FAIL() << "bit " << bit;
  }
}

TEST_F(TeamCorruption, any_file_that_is_cut_grown_or_gone_is_refused_by_name) {
  const fs::path path = saved(folder);
  for (const auto& name : files_of(path)) {
    const std::string whole = content_of(path / name);
    for (size_t size = 0; size < whole.size(); size += size < 70 ? 7 : base::tests_run_at_night() ? 1 : whole.size() / 20 + 1) {
      put_content(path / name, whole.substr(0, size));
      expect_refused(path, name);
    }
    put_content(path / name, whole.substr(0, whole.size() - 1));
    expect_refused(path, name);
    put_content(path / name, whole + '\0');
    expect_refused(path, name);
    put_content(path / name, std::string(whole.size(), '\0'));
    expect_refused(path, name);
    fs::remove(path / name);
    expect_refused(path, name);
    EXPECT_FALSE(latest(folder)) << "offered without " << name;
    put_content(path / name, whole);
    if (HasFailure()) FAIL() << name;
  }
  EXPECT_EQ(load_error(path), "");
}

TEST_F(TeamCorruption, swapped_files_of_two_ranks_are_refused_by_name) {
  const fs::path path = saved(folder);
  const auto files = load_metadata(path).files;
  ASSERT_EQ(files.size(), 6u) << "two of each rank's tensors and one of its extras";
  for (size_t a = 0; a < files.size(); ++a)
    for (size_t b = a + 1; b < files.size(); ++b) {
      swap_files(path / files[a].name, path / files[b].name);
      expect_refused(path, files[a].name);
      expect_refused(path, files[a].name);
      swap_files(path / files[a].name, path / files[b].name);
    }
  EXPECT_EQ(load_error(path), "");
}

TEST_F(TeamCorruption, files_of_another_step_or_save_are_refused_by_name_whatever_they_hold) {
  const fs::path path = saved(folder), next = saved(folder, 2), again = saved(folder / "again");
  const auto names = files_of(path);
  ASSERT_EQ(files_of(again), names);
  for (const auto& name : names) {
    if (name == kMetadataName) continue;
    ASSERT_EQ(content_of(path / name).substr(kDataHeaderBytes), content_of(again / name).substr(kDataHeaderBytes)) << "same tensors";
    for (const auto& other : {next, again}) {
      swap_files(path / name, other / name);
      expect_refused(path, name);
      expect_refused(other, name);
      EXPECT_THAT(load_error(path), HasSubstr("of another checkpoint"));
      swap_files(path / name, other / name);
    }
  }
  // The metadata of the other save fits no file; that of another step does not fit the folder.
  swap_files(path / kMetadataName, again / kMetadataName);
  expect_refused(path, "data_00000.bin");
  swap_files(path / kMetadataName, again / kMetadataName);
  swap_files(path / kMetadataName, next / kMetadataName);
  expect_refused(path, kMetadataName);
  swap_files(path / kMetadataName, next / kMetadataName);
  EXPECT_EQ(load_error(path), "");
  EXPECT_EQ(load_error(next), "");
}

// Ids that were given twice are the last thing that tells files apart: then the checksums do.
TEST_F(TeamCorruption, files_with_the_same_id_and_step_but_other_bytes_are_refused_by_tensor) {
  const CheckpointId id{1, 2};
  const Sample other = mixed_sample(2);
  const fs::path path = saved(folder, 1, nullptr, id), twin = saved(folder / "twin", 1, &other, id);
  const auto metadata = load_metadata(path);
  const auto ranges = ranges_of(metadata);
  for (size_t file = 0; file < metadata.files.size(); ++file) {
    const auto& name = metadata.files[file].name;
    if (!ranges[file][0].is_tensor) continue;  // the notes are the same
    swap_files(path / name, twin / name);
    expect_refused(path, name);
    std::set<std::string> damaged, held;
    for (const auto& range : ranges[file]) held.insert(*range.owner);
    for (const auto& damage : verify(path).damage) damaged.insert(damage.tensor);
    EXPECT_EQ(damaged, held);
    EXPECT_THAT(load_error(path), HasSubstr("' is damaged"));
    swap_files(path / name, twin / name);
  }
}

}  // namespace
}  // namespace ingot::checkpoint
