// Checkpoints in the memory of machines, of which some are lost, damaged or half written.
#include "checkpoint/ranks/host_memory.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "checkpoint/load/load.h"
#include "checkpoint/tests/test_team.h"

namespace ingot::checkpoint {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Keepers, are_on_another_machine_where_there_is_one) {
  const auto other = PeerCopy::other_machine;
  EXPECT_THAT(keepers({"a", "a", "b", "b"}, other), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(keepers({"a", "b", "a", "b", "c", "c"}, other), ElementsAre(1, 4, 3, 5, 0, 2));
  EXPECT_THAT(keepers({"a", "a", "a", "b"}, other), ElementsAre(3, 3, 3, 0));
  EXPECT_THAT(keepers({"a", "a"}, other), ElementsAre(-1, -1));
  EXPECT_THAT(keepers({"a", "a", "a"}, PeerCopy::always), ElementsAre(1, 2, 0));
  EXPECT_THAT(keepers({"a"}, PeerCopy::always), ElementsAre(-1));
  EXPECT_THAT(keepers({"a", "b"}, PeerCopy::never), ElementsAre(-1, -1));
}

class HostMemoryTest : public TemporaryFolder {
 protected:
  HostMemoryTest() : TemporaryFolder(memory_folder()) {}

  // The memory of one machine.
  fs::path memory_of(const std::string& machine) const { return folder / machine; }

  // All ranks save `sample`; `machines` has one name for each rank. Returns what each threw.
  std::vector<std::string> save_all(const std::vector<std::string>& machines, const Sample& sample, int64_t step,
                                    const Storage* storage_of_last = nullptr, PeerCopy mode = PeerCopy::other_machine) {
    const int ranks = static_cast<int>(machines.size());
    return run_team(ranks, [&](const Team& team) {
      const auto& machine = machines[static_cast<size_t>(team.rank())];
      const bool is_last = team.rank() + 1 == ranks;
      auto destination = std::make_unique<HostMemory>(
          HostMemoryOptions{memory_of(machine), machine, mode, 700, is_last ? storage_of_last : nullptr}, team);
      Saver saver(std::move(destination), {.piece_limit_bytes = 512, .file_limit_bytes = 2048, .team = &team});
      saver.start(step, mixed_items(sample, team.rank(), ranks), team.rank() == 0 ? Extras{{"x", std::to_string(step)}} : Extras{});
      saver.wait();
      const auto outcome = saver.finished().at(0);
      if (!outcome.failure.empty()) throw base::CheckpointError("{}", outcome.failure);
    });
  }

  // The step that is found, and by how many ranks `sample` is read from it bit for bit; -1 when nothing is found.
  int64_t find(const std::vector<std::string>& machines, const Sample* sample, int64_t newer_than = -1) {
    int64_t found = -2;
    const int ranks = static_cast<int>(machines.size());
    const auto errors = run_team(ranks, [&](const Team& team) {
      const auto copy = newest_host_copy(memory_of(machines[static_cast<size_t>(team.rank())]), team, newer_than);
      if (team.rank() == 0) found = copy ? copy->step : -1;
      if (!copy) return;
      const TeamReader reader(*copy, {.team = &team});
      EXPECT_EQ(reader.extra("x"), std::to_string(copy->step));
      // Every rank wants all of the first tensor, and its rows or a slice of the others.
      std::vector<std::string> memory;
      std::vector<LoadItem> items;
      std::vector<std::pair<const std::byte*, int64_t>> expected;
      for (size_t number = 0; number < sample->tensors().size(); ++number) {
        const auto& [tensor, bytes] = sample->tensors()[number];
        for (auto& box : mixed_boxes(tensor, number, team.rank(), ranks)) {
          const int64_t element = tensor::size_bytes(tensor.dtype), size = tensor::element_count(box.extent) * element;
          expected.emplace_back(
              reinterpret_cast<const std::byte*>(bytes.data()) + first_element(tensor::whole(tensor.shape), box) * element, size);
          memory.emplace_back(static_cast<size_t>(size), '?');
          items.push_back({tensor.name, std::move(box), nullptr});
        }
      }
      for (size_t i = 0; i < items.size(); ++i) items[i].data = reinterpret_cast<std::byte*>(memory[i].data());
      reader.load(items);
      for (size_t i = 0; i < items.size(); ++i)
        EXPECT_EQ(std::memcmp(memory[i].data(), expected[i].first, static_cast<size_t>(expected[i].second)), 0) << items[i].name;
    });
    EXPECT_THAT(errors, Each(""));
    return found;
  }

  void lose(const std::string& machine) { fs::remove_all(memory_of(machine)); }

  const Sample old_ = mixed_sample(1), new_ = mixed_sample(2);
};

TEST_F(HostMemoryTest, any_one_machine_may_be_lost) {
  for (const std::vector<std::string>& machines :
       {std::vector<std::string>{"a", "a", "b", "b"}, {"a", "b", "c"}, {"a", "a", "a", "b"}, {"a", "b", "a", "b", "c"}}) {
    for (const std::string lost : {"a", "b"}) {
      SCOPED_TRACE(lost);
      ASSERT_THAT(save_all(machines, old_, 10), Each(""));
      ASSERT_THAT(save_all(machines, new_, 12), Each(""));
      lose(lost);
      EXPECT_EQ(find(machines, &new_), 12);
      // The next one goes on as if nothing had been.
      ASSERT_THAT(save_all(machines, old_, 14), Each(""));
      EXPECT_EQ(find(machines, &old_), 14);
      fs::remove_all(folder);
    }
  }
}

TEST_F(HostMemoryTest, what_is_lost_with_two_machines_is_not_made_up) {
  const std::vector<std::string> machines = {"a", "b", "c"};
  ASSERT_THAT(save_all(machines, new_, 12), Each(""));
  lose("a");
  lose("b");
  EXPECT_EQ(find(machines, &new_), -1);
  EXPECT_EQ(find({"d"}, &new_), -1) << "an empty folder";
}

TEST_F(HostMemoryTest, other_ranks_in_another_order_find_it) {
  ASSERT_THAT(save_all({"a", "a", "b", "b"}, new_, 12), Each(""));
  EXPECT_EQ(find({"b", "a"}, &new_), 12);
  EXPECT_EQ(find({"b", "a", "a", "b", "a"}, &new_), 12);
  EXPECT_EQ(find({"b", "new"}, &new_), 12) << "a is gone, and a new machine has come";
  EXPECT_EQ(find({"b", "a"}, &new_, 12), -1) << "the folder of checkpoints has a newer one";
}

TEST_F(HostMemoryTest, damage_is_read_from_the_other_copy_and_without_one_nothing_is_trusted) {
  const std::vector<std::string> machines = {"a", "b"};
  const auto flip = [](const fs::path& file, size_t at) {
    auto content = content_of(file);
    content[at] = static_cast<char>(content[at] ^ 4);
    put_content(file, content);
  };
  ASSERT_THAT(save_all(machines, new_, 12), Each(""));
  const auto own = memory_of("a") / "rank_00000" / "step_00000012", kept = memory_of("b") / "rank_00001" / "step_00000012";
  for (const size_t at : {3u, 70u, 1500u}) {
    flip(own / "data_00000.bin", at);
    EXPECT_EQ(find(machines, &new_), 12) << at;
    fs::resize_file(own / "data_00000.bin", 1000);
    EXPECT_EQ(find(machines, &new_), 12) << at;
    flip(kept / "data_00000.bin", at);
    EXPECT_EQ(find(machines, &new_), -1) << at;
    fs::remove_all(folder);
    ASSERT_THAT(save_all(machines, new_, 12), Each(""));
  }
  flip(own / "metadata.bin", 90);
  EXPECT_EQ(find(machines, &new_), 12) << "the metadata of b, and the copies there";
}

TEST_F(HostMemoryTest, one_that_not_all_ranks_have_is_passed_over) {
  const std::vector<std::string> machines = {"a", "b"};
  ASSERT_THAT(save_all(machines, old_, 10), Each(""));
  fs::copy(folder, folder.string() + "_old", fs::copy_options::recursive);
  ASSERT_THAT(save_all(machines, new_, 12), Each(""));
  // Killed when only the first had made the new one visible, and without copies: as if none had been passed on.
  fs::remove_all(memory_of("b"));
  fs::copy(folder.string() + "_old" + "/b", memory_of("b"), fs::copy_options::recursive);
  fs::copy(folder.string() + "_old" + "/a", memory_of("a"), fs::copy_options::recursive);
  fs::remove_all(folder.string() + "_old");
  for (const auto& entry : fs::directory_iterator(memory_of("a") / "rank_00000" / "step_00000012"))
    if (entry.path().filename() != "metadata.bin" && entry.path().filename() != "data_00000.bin") fs::remove(entry.path());
  EXPECT_EQ(find(machines, &old_), 10);
}

TEST_F(HostMemoryTest, holds_one_generation_and_no_leftovers) {
  ASSERT_THAT(save_all({"a", "b"}, old_, 10), Each(""));
  const auto own = memory_of("a") / "rank_00000";
  fs::create_directories(own / ".step_00000011.tmp-00");
  ASSERT_THAT(save_all({"a", "b"}, new_, 12), Each(""));
  EXPECT_THAT(names_in(own), ElementsAre("step_00000012"));
  ASSERT_THAT(save_all({"a", "b"}, old_, 12), Each("")) << "the same step again, after going back";
  EXPECT_EQ(find({"a", "b"}, &old_), 12);
}

TEST_F(HostMemoryTest, all_fail_together_when_one_has_no_room_and_the_old_one_stays) {
  struct Full : CallHook {
    int left = 0;
    int before(Call call, const fs::path&, size_t&) override { return call == Call::write && left-- <= 0 ? ENOSPC : 0; }
  };
  const std::vector<std::string> machines = {"a", "b", "c"};
  ASSERT_THAT(save_all(machines, old_, 10), Each(""));
  for (int room = 0; room < 40; ++room) {
    Full full;
    full.left = room;
    const PosixStorage storage(&full, 4096, {.uring = false, .direct = false});
    const auto errors = save_all(machines, new_, 12, &storage);
    if (errors[0].empty()) {
      EXPECT_GT(room, 3);
      EXPECT_THAT(errors, Each(""));
      EXPECT_EQ(find(machines, &new_), 12);
      return;
    }
    EXPECT_THAT(errors, Each(HasSubstr("No space left")));
    EXPECT_THAT(names_in(memory_of("c") / "rank_00002"), ElementsAre("step_00000010"));
    EXPECT_EQ(find(machines, &old_), 10);
  }
  FAIL() << "it never succeeded";
}

TEST_F(HostMemoryTest, ranks_of_one_machine_keep_each_others_only_when_asked) {
  ASSERT_THAT(save_all({"a", "a", "a"}, new_, 12), Each(""));
  EXPECT_EQ(find({"a"}, &new_), 12);
  fs::remove_all(memory_of("a") / "rank_00001");
  EXPECT_EQ(find({"a", "a"}, &new_), -1);
  ASSERT_THAT(save_all({"a", "a", "a"}, new_, 14, nullptr, PeerCopy::always), Each(""));
  fs::remove_all(memory_of("a") / "rank_00001");
  EXPECT_EQ(find({"a", "a"}, &new_), 14);
}

}  // namespace
}  // namespace ingot::checkpoint
