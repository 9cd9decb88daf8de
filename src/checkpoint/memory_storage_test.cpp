#include "checkpoint/memory_storage.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "checkpoint/load.h"
#include "checkpoint/test_team.h"
#include "checkpoint/verify.h"

namespace ingot::checkpoint {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST(MemoryStorage, holds_checkpoints_as_a_disk_does) {
  const MemoryStorage storage;
  const fs::path folder = "run/checkpoints";
  const SaveOptions options{.retention = {.keep = 2}, .piece_limit_bytes = 5000, .storage = &storage};
  const Sample samples[] = {Sample::usual(1), Sample::usual(2), Sample::usual(3)};
  for (int64_t step = 0; step < 3; ++step) save(folder, step, samples[step].items(), {{"x", std::to_string(step)}}, options);
  EXPECT_THAT(all(folder, storage), ::testing::SizeIs(2));
  EXPECT_TRUE(samples[2].is_in(latest(folder, storage)->path, storage));
  EXPECT_TRUE(verify(folder / "step_00000001", storage).sound());
  EXPECT_EQ(Reader(folder / "step_00000001/", {.storage = &storage}).extra("x"), "1");
  EXPECT_FALSE(fs::exists("run"));

  save(folder, 2, samples[0].items(), {}, options);  // again
  EXPECT_TRUE(samples[0].is_in(folder / "step_00000002", storage));
  const int64_t bytes = storage.size_bytes();
  {
    const Reader reader(folder / "step_00000001", {.storage = &storage});
    EXPECT_THAT(prune(folder, {.keep = 1}, storage), ::testing::IsEmpty()) << "a reader holds it";
  }
  EXPECT_THAT(prune(folder, {.keep = 1}, storage), ::testing::SizeIs(1));
  EXPECT_LT(storage.size_bytes(), bytes);
  storage.remove_folder("run");
  EXPECT_EQ(storage.size_bytes(), 0);
  EXPECT_FALSE(latest(folder, storage));
}

TEST(MemoryStorage, many_ranks_save_and_load) {
  const MemoryStorage storage;
  const auto sample = mixed_sample(5);
  const auto errors = run_team(3, [&](const Team& team) {
    save("all", 7, mixed_items(sample, team.rank(), 3), {}, {.piece_limit_bytes = 300, .storage = &storage, .team = &team});
    const TeamReader reader("all/step_00000007", {.storage = &storage, .team = &team});
    const auto& [tensor, bytes] = sample.tensors()[1];
    std::string got(bytes.size(), '?');
    reader.load({{tensor.name, tensor::whole(tensor.shape), reinterpret_cast<std::byte*>(got.data())}});
    EXPECT_EQ(got, bytes);
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_TRUE(sample.is_in("all/step_00000007", storage));
}

TEST(MemoryStorage, wrong_calls_are_named) {
  const MemoryStorage storage;
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const base::CheckpointError& failure) {
      return failure.what();
    }
    return "";
  };
  EXPECT_THAT(message([&] { storage.open("a/b"); }), HasSubstr("a/b"));
  EXPECT_THAT(message([&] { storage.create("a/b"); }), HasSubstr("no such folder"));
  storage.make_folder("a");
  storage.create("a/b")->write("xyz", 3);
  EXPECT_THAT(message([&] { storage.create("a/b"); }), HasSubstr("there already"));
  char byte;
  EXPECT_THAT(message([&] { storage.open("a/b")->read_at(2, &byte, 2); }), HasSubstr("truncated"));
  EXPECT_THAT(message([&] { storage.hold("c", false); }), HasSubstr("c"));
}

}  // namespace
}  // namespace ingot::checkpoint
