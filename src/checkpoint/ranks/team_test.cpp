// Several ranks, as threads, save one checkpoint together; and nobody is left alone with half of one when a rank fails.
#include "checkpoint/ranks/team.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "checkpoint/tests/test_team.h"

namespace ingot::checkpoint {
namespace {

using ::testing::HasSubstr;

// Rank r of p has the r-th flat slice of every tensor.
std::vector<SaveItem> slice_of(const Sample& sample, int rank, int size) {
  std::vector<SaveItem> items;
  for (const auto& [tensor, bytes] : sample.tensors()) {
    const int64_t count = tensor::element_count(tensor.shape);
    int64_t at = count * rank / size;
    for (const auto& box : tensor::boxes_of_flat_slice(tensor.shape, at, count * (rank + 1) / size)) {
      items.push_back({tensor, box, reinterpret_cast<const std::byte*>(bytes.data()) + at * tensor::size_bytes(tensor.dtype)});
      at += tensor::element_count(box.extent);
    }
  }
  for (const auto& [tensor, bytes] : sample.tensors())
    if (rank == 0 && bytes.empty()) items.push_back(whole_item(tensor, bytes.data()));
  return items;
}

class TeamSave : public TemporaryFolder {};

TEST_F(TeamSave, slices_of_all_ranks_become_one_checkpoint) {
  for (const int size : {2, 3, 5}) {
    const auto sample = Sample::usual(static_cast<uint64_t>(size));
    const auto errors = run_team(size, [&](const Team& team) {
      const auto report = save(folder, size, slice_of(sample, team.rank(), size), {{fmt::format("note of rank {}", team.rank()), "hello"}},
                               {.team = &team});
      EXPECT_TRUE(team.rank() != 0 || report.data_bytes > 0);
    });
    for (const auto& error : errors) EXPECT_EQ(error, "");
    const auto path = folder / step_name(size);
    EXPECT_TRUE(sample.is_in(path));
    for (int rank = 0; rank < size; ++rank) EXPECT_EQ(Reader(path).extra(fmt::format("note of rank {}", rank)), "hello");
    EXPECT_EQ(Reader(path).metadata().files.size(), static_cast<size_t>(2 * size));
  }
}

TEST_F(TeamSave, all_fail_together_and_leave_nothing_when_one_cannot_write) {
  const auto sample = Sample::usual(1);
  class Full : public CallHook {
   public:
    int before(Call call, const fs::path& path, size_t&) override {
      return call == Call::write && path.filename() == "data_00002.bin" ? ENOSPC : 0;
    }
  } full;
  const PosixStorage storage(&full);
  const auto errors =
      run_team(3, [&](const Team& team) { save(folder, 7, slice_of(sample, team.rank(), 3), {}, {.storage = &storage, .team = &team}); });
  for (const auto& error : errors) {
    EXPECT_THAT(error, HasSubstr("rank 2"));
    EXPECT_THAT(error, HasSubstr("No space left"));
  }
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(TeamSave, a_gap_between_the_ranks_is_found_before_the_commit) {
  const auto sample = Sample::usual(1);
  const auto errors = run_team(3, [&](const Team& team) { save(folder, 7, slice_of(sample, team.rank(), 4), {}, {.team = &team}); });
  for (const auto& error : errors) EXPECT_THAT(error, HasSubstr("tensor '"));
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(TeamSave, ranks_that_disagree_on_a_tensor_are_named) {
  const auto sample = Sample::usual(1);
  const auto errors = run_team(2, [&](const Team& team) {
    auto items = slice_of(sample, team.rank(), 2);
    if (team.rank() == 1)
      for (auto& item : items)
        if (item.tensor.name == "mask") item.tensor.dtype = tensor::DType::uint8;
    save(folder, 7, items, {}, {.team = &team});
  });
  for (const auto& error : errors) EXPECT_THAT(error, HasSubstr("'mask' is boolean [5] on rank 0 and uint8 [5] on rank 1"));
}

}  // namespace
}  // namespace ingot::checkpoint
