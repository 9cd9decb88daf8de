// Saves in the background: what they hold, how they end, and when the plan is made anew.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "base/error.h"
#include "checkpoint/load/verify.h"
#include "checkpoint/tests/test_team.h"

namespace ingot::checkpoint {
namespace {

using tensor::DType;
using ::testing::HasSubstr;

class SaverTest : public TemporaryFolder {
 protected:
  SaverTest() : TemporaryFolder(memory_folder()) {}

  std::vector<float> weights_ = std::vector<float>(200000), moments_ = std::vector<float>(200000);
  std::vector<SaveItem> items() const {
    return {whole_item({"weights", DType::fp32, {1000, 200}}, weights_.data()),
            whole_item({"moments", DType::fp32, {200000}}, moments_.data())};
  }
  void set(float value) {
    std::fill(weights_.begin(), weights_.end(), value);
    std::fill(moments_.begin(), moments_.end(), -value);
  }
  void expect_value(int64_t step, float value) const {
    const Reader reader(folder / step_name(step));
    for (const char* name : {"weights", "moments"}) {
      const auto bytes = reader.read(name);
      const auto* read = reinterpret_cast<const float*>(bytes.data());
      const float wanted = name[0] == 'w' ? value : -value;
      EXPECT_TRUE(std::all_of(read, read + 200000, [&](float x) { return x == wanted; })) << name << " of step " << step;
    }
  }
};

TEST_F(SaverTest, holds_what_was_there_however_little_memory_it_has) {
  for (const int64_t staging : {int64_t{0}, int64_t{100000}, int64_t{1} << 30}) {
    fs::remove_all(folder);
    Saver saver(folder, {.staging_bytes = staging, .block_bytes = 8192});
    for (int step = 1; step <= 3; ++step) {
      set(static_cast<float>(step));
      saver.start(step, items(), {{"x", "y"}});
      saver.wait_copied();
      set(99);
    }
    saver.wait();
    for (int step = 1; step <= 3; ++step) expect_value(step, static_cast<float>(step));
    EXPECT_LE(saver.staging_bytes(), std::max<int64_t>(staging + 8192, 16384));
    const auto outcomes = saver.finished();
    ASSERT_EQ(outcomes.size(), 3u);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(outcomes[static_cast<size_t>(i)].failure, "");
      EXPECT_EQ(outcomes[static_cast<size_t>(i)].report.step, i + 1);
      EXPECT_EQ(outcomes[static_cast<size_t>(i)].report.planned, i == 0);
    }
    EXPECT_TRUE(saver.finished().empty());
  }
}

TEST_F(SaverTest, two_under_way_end_in_order) {
  Saver saver(folder, {.in_flight = 2});
  for (int step = 1; step <= 6; ++step) {
    set(static_cast<float>(step));
    saver.start(step, items(), {});
    saver.wait_copied();
  }
  saver.wait();
  const auto outcomes = saver.finished();
  ASSERT_EQ(outcomes.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(outcomes[i].report.step, static_cast<int64_t>(i) + 1);
  for (int step = 4; step <= 6; ++step) expect_value(step, static_cast<float>(step));
  EXPECT_EQ(all(folder).size(), 3u) << "retention goes on meanwhile";
}

// The background begins by itself, a moment after start(), also while another save is at any of its stages.
TEST_F(SaverTest, ends_without_anybody_waiting) {
  Saver saver(folder, {.retention = {.keep = 12}, .in_flight = 3});
  set(5);
  for (int step = 1; step <= 12; ++step) {
    saver.start(step, items(), {});
    std::this_thread::sleep_for(std::chrono::milliseconds(3 * (step % 6)));
  }
  const auto began = std::chrono::steady_clock::now();
  while (saver.is_busy() && std::chrono::steady_clock::now() - began < std::chrono::minutes(1))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(saver.is_busy());
  const auto outcomes = saver.finished();
  ASSERT_EQ(outcomes.size(), 12u);
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.failure, "");
  for (int step = 1; step <= 12; ++step) expect_value(step, 5);
}

TEST_F(SaverTest, every_change_of_what_there_is_makes_a_new_plan) {
  Saver saver(folder, {});
  std::vector<std::byte> bytes(4096);
  const auto item = [&](const char* name, DType dtype, tensor::Shape shape) {
    return whole_item({name, dtype, std::move(shape)}, bytes.data());
  };
  const auto planned = [&](const std::vector<SaveItem>& items, const Extras& extras) {
    static int64_t step = 0;
    saver.start(++step, items, extras);
    saver.wait();
    const auto outcome = saver.finished().at(0);
    EXPECT_EQ(outcome.failure, "");
    const auto list = Reader(folder / step_name(step)).list();
    EXPECT_EQ(list.size(), items.size());
    return outcome.report.planned;
  };
  const std::vector<SaveItem> first = {item("a", DType::fp32, {8, 8}), item("b", DType::fp32, {16})};
  EXPECT_TRUE(planned(first, {}));
  EXPECT_FALSE(planned(first, {}));
  EXPECT_TRUE(planned(first, {{"x", "1"}}));
  EXPECT_FALSE(planned(first, {{"y", "longer than before"}})) << "what extras say is not planned";
  EXPECT_TRUE(planned({first[0]}, {{"x", "1"}})) << "one gone";
  EXPECT_TRUE(planned({first[0], first[1], item("c", DType::fp32, {})}, {{"x", "1"}})) << "one more";
  EXPECT_TRUE(planned({first[0], item("B", DType::fp32, {16})}, {{"x", "1"}})) << "another name";
  EXPECT_TRUE(planned({first[0], item("B", DType::int32, {16})}, {{"x", "1"}})) << "another dtype";
  EXPECT_TRUE(planned({first[0], item("B", DType::int32, {4, 4})}, {{"x", "1"}})) << "another shape";
  auto halves = std::vector<SaveItem>{first[0], item("B", DType::int32, {4, 4}), item("B", DType::int32, {4, 4})};
  halves[1].box = {{0, 0}, {2, 4}}, halves[2].box = {{2, 0}, {2, 4}};
  saver.start(100, halves, {{"x", "1"}});
  saver.wait();
  EXPECT_TRUE(saver.finished().at(0).report.planned) << "other boxes";
  // The same memory with other content, and other memory with the same layout: the plan stays, the bytes are those of now.
  std::vector<std::byte> elsewhere(4096, std::byte{7});
  for (auto& one : halves) one.data = elsewhere.data();
  saver.start(101, halves, {{"x", "1"}});
  saver.wait();
  EXPECT_FALSE(saver.finished().at(0).report.planned);
  EXPECT_EQ(Reader(folder / step_name(101)).read("a"), std::vector<std::byte>(256, std::byte{7}));
}

TEST_F(SaverTest, a_change_on_one_rank_makes_all_plan_anew) {
  const auto errors = run_team(3, [&](const Team& team) {
    SaveOptions options;
    options.team = &team;
    Saver saver(folder, options);
    const std::vector<float> shared(64, 1), own(64, static_cast<float>(team.rank()));
    std::vector<SaveItem> items = {whole_item({"shared", DType::fp32, {8, 8}}, shared.data())};
    for (int64_t step = 1; step <= 4; ++step) {
      if (step == 3 && team.rank() == 1) items.push_back(whole_item({"own", DType::fp32, {64}}, own.data()));
      saver.start(step, items, {});
      saver.wait();
      const auto outcome = saver.finished().at(0);
      EXPECT_EQ(outcome.failure, "");
      EXPECT_EQ(outcome.report.planned, step == 1 || step == 3) << step;
    }
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(Reader(folder / step_name(2)).list().size(), 1u);
  EXPECT_EQ(Reader(folder / step_name(4)).list().size(), 2u);
}

TEST_F(SaverTest, failures_are_told_later_and_the_next_save_works) {
  class Full : public CallHook {
   public:
    std::atomic<bool> full{false};
    int before(Call call, const fs::path&, size_t&) override { return full && call == Call::write ? ENOSPC : 0; }
  } hook;
  const PosixStorage storage(&hook);
  Saver saver(folder, {.staging_bytes = 16384, .block_bytes = 8192, .storage = &storage});
  for (int step = 1; step <= 3; ++step) {
    set(static_cast<float>(step));
    hook.full = step == 2;
    EXPECT_NO_THROW(saver.start(step, items(), {}));
    saver.wait_copied();
    saver.wait();
  }
  const auto outcomes = saver.finished();
  ASSERT_EQ(outcomes.size(), 3u);
  EXPECT_EQ(outcomes[0].failure, "");
  EXPECT_THAT(outcomes[1].failure, HasSubstr("No space left"));
  EXPECT_EQ(outcomes[2].failure, "");
  EXPECT_EQ(all(folder).size(), 2u);
  expect_value(1, 1);
  expect_value(3, 3);
}

TEST_F(SaverTest, nan_is_refused_by_name_when_asked) {
  set(1);
  moments_[123456] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NO_THROW(save(folder, 1, items(), {}));
  try {
    save(folder, 2, items(), {}, {.refuse_nonfinite = true});
    ADD_FAILURE() << "it was written";
  } catch (const base::CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("moments has NaN or Inf; the checkpoint of step 2 is not written"));
  }
  EXPECT_EQ(all(folder).size(), 1u);
}

TEST_F(SaverTest, phases_account_for_bytes_and_time) {
  set(1);
  const auto report = save(folder, 1, items(), {{"x", "y"}});
  ASSERT_EQ(report.ranks.size(), 1u);
  const auto& phases = report.phases;
  EXPECT_EQ(phases.bytes, report.data_bytes);
  int64_t on_disk = 0;
  for (const auto& entry : fs::directory_iterator(report.path))
    if (entry.path().filename() != kMetadataName) on_disk += static_cast<int64_t>(fs::file_size(entry.path()));
  EXPECT_EQ(on_disk, report.data_bytes);
  EXPECT_EQ(static_cast<int64_t>(fs::file_size(report.path / kMetadataName)), report.metadata_bytes);
  EXPECT_GT(phases.total_s, 0);
  EXPECT_LE(phases.write_s + phases.sync_s + phases.commit_s, phases.total_s);
  EXPECT_LE(phases.hash_s, phases.total_s);
}

}  // namespace
}  // namespace ingot::checkpoint
