#include <gmock/gmock.h>

#include <random>
#include <thread>

#include "base/error.h"
#include "checkpoint/load/verify.h"
#include "checkpoint/tests/test_support.h"

namespace ingot::checkpoint {
namespace {

using tensor::DType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Checkpoint : public TemporaryFolder {
 protected:
  template <class Function>
  void expect_error(Function&& function, const std::string& words) {
    try {
      function();
      ADD_FAILURE() << "no error; expected: " << words;
    } catch (const base::CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
  }
  int entries() const { return static_cast<int>(std::distance(fs::directory_iterator(folder), fs::directory_iterator())); }
};

TEST_F(Checkpoint, every_dtype_comes_back_bit_for_bit) {
  Sample sample(1);
  for (int i = 0; i <= static_cast<int>(DType::complex128); ++i) {
    const auto dtype = static_cast<DType>(i);
    sample.add(fmt::format("{}.matrix", tensor::name_of(dtype)), dtype, {17, 5});
    sample.add(fmt::format("{}.scalar", tensor::name_of(dtype)), dtype, {});
    sample.add(fmt::format("{}.empty", tensor::name_of(dtype)), dtype, {3, 0, 2});
  }
  const auto report = save(folder, 7, sample.items(), {});
  EXPECT_EQ(report.path, folder / "step_00000007");
  EXPECT_TRUE(sample.is_in(report.path));
  EXPECT_TRUE(verify(report.path).sound());
}

TEST_F(Checkpoint, special_values_keep_their_bits) {
  // NaNs with payloads, quiet and signalling, -0, denormals and infinities.
  const std::vector<uint32_t> words = {0x7fc00001, 0x7f800001, 0xffc12345, 0x80000000, 0x00000001, 0x807fffff, 0x7f800000, 0xff800000};
  const auto report = save(folder, 1, {whole_item({"x", DType::fp32, {8}}, words.data())}, {});
  const auto read = Reader(report.path).read("x");
  EXPECT_EQ(std::memcmp(read.data(), words.data(), 32), 0);
}

TEST_F(Checkpoint, extras_and_step_come_back) {
  const std::string binary("\0\xff\n", 3), large(300000, 'x');
  const auto report =
      save(folder, 12, Sample::usual(1).items(), {{"cursor", R"({"epoch":3})"}, {"binary", binary}, {"empty", ""}, {"large", large}});
  const Reader reader(report.path);
  EXPECT_EQ(reader.step(), 12);
  EXPECT_THAT(reader.extras(), ElementsAre("binary", "cursor", "empty", "large"));
  EXPECT_EQ(reader.extra("cursor"), R"({"epoch":3})");
  EXPECT_EQ(reader.extra("binary"), binary);
  EXPECT_EQ(reader.extra("empty"), "");
  EXPECT_EQ(reader.extra("large"), large);
  EXPECT_FALSE(reader.has_extra("none"));
  expect_error([&] { reader.extra("cursors"); }, "did you mean 'cursor'");
  expect_error([&] { reader.read("layer.0.weight"); }, "did you mean 'layers.0.weight'");
}

// The oracle is a plain array: element i of the tensor holds i.
TEST_F(Checkpoint, any_box_is_read_from_any_pieces) {
  std::mt19937_64 random(5);
  const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  for (int round = 0; round < 60; ++round) {
    const tensor::Shape shape = {draw(1, 30), draw(1, 20), draw(1, 10)};
    const tensor::LogicalTensor tensor{"t", DType::int32, shape};
    std::vector<int32_t> values(static_cast<size_t>(tensor::element_count(shape)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i);
    // Saved in flat slices, as ZeRO cuts them: boxes in flat order are one run of memory.
    std::vector<SaveItem> items;
    const auto count = static_cast<int64_t>(values.size());
    for (int64_t begin = 0; begin < count;) {
      const int64_t end = std::min(count, begin + draw(1, count));
      const int32_t* data = values.data() + begin;
      for (auto& box : tensor::boxes_of_flat_slice(shape, begin, end)) {
        const int64_t elements = tensor::element_count(box.extent);
        items.push_back({tensor, std::move(box), reinterpret_cast<const std::byte*>(data)});
        data += elements;
      }
      begin = end;
    }
    std::shuffle(items.begin(), items.end(), random);
    SaveOptions options;
    options.piece_limit_bytes = draw(1, 400);
    const auto report = save(folder, round, items, {}, options);
    for (const bool verified : {true, false}) {
      const Reader reader(report.path, {.verify = verified});
      for (int query = 0; query < 20; ++query) {
        tensor::Box box = tensor::whole(shape);
        for (size_t d = 0; d < 3; ++d) {
          box.offset[d] = draw(0, shape[d] - 1);
          box.extent[d] = draw(query == 0 ? 0 : 1, shape[d] - box.offset[d]);
        }
        std::vector<int32_t> read(static_cast<size_t>(tensor::element_count(box.extent)), -1), expected;
        reader.read("t", box, reinterpret_cast<std::byte*>(read.data()));
        for (int64_t a = 0; a < box.extent[0]; ++a)
          for (int64_t b = 0; b < box.extent[1]; ++b)
            for (int64_t c = 0; c < box.extent[2]; ++c)
              expected.push_back(static_cast<int32_t>(((box.offset[0] + a) * shape[1] + box.offset[1] + b) * shape[2] + box.offset[2] + c));
        ASSERT_EQ(read, expected);
      }
    }
  }
}

TEST_F(Checkpoint, loading_reads_only_the_bytes_that_are_needed) {
  Sample sample(3);
  sample.add("big", DType::fp32, {1024, 1024});
  SaveOptions options;
  options.piece_limit_bytes = 64 << 10;
  const auto path = save(folder, 1, sample.items(), {}, options).path;
  const Reader whole(path);
  whole.read("big");
  EXPECT_EQ(whole.counters().read_bytes, 4 << 20);
  const Reader rows(path);
  std::vector<std::byte> out(4 << 20);
  rows.read("big", {{100, 0}, {200, 1024}}, out.data());
  EXPECT_EQ(rows.counters().wanted_bytes, 200 * 4096);
  EXPECT_LE(rows.counters().read_bytes, 200 * 4096 + 2 * (64 << 10)) << "more than the pieces at both borders was read on top";
  const Reader unverified(path, {.verify = false});
  unverified.read("big", {{100, 0}, {200, 1024}}, out.data());
  EXPECT_EQ(unverified.counters().read_bytes, 200 * 4096);
}

TEST_F(Checkpoint, many_threads_read_at_once) {
  const Sample sample = Sample::usual(9);
  const Reader reader(save(folder, 1, sample.items(), {}).path);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        for (const auto& [tensor, bytes] : sample.tensors()) {
          const auto read = reader.read(tensor.name);
          wrong += !bytes.empty() && std::memcmp(read.data(), bytes.data(), bytes.size()) != 0;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Checkpoint, same_state_and_id_give_the_same_bytes) {
  const Sample sample = Sample::usual(4);
  SaveOptions options;
  options.id = CheckpointId{1, 2};
  auto items = sample.items();
  const auto a = save(folder / "a", 5, items, {{"x", "1"}, {"y", "2"}}, options).path;
  const auto b = save(folder / "b", 5, items, {{"y", "2"}, {"x", "1"}}, options).path;
  for (const char* name : {"metadata.bin", "data_00000.bin", "data_00001.bin"})
    EXPECT_EQ(content_of(a / name), content_of(b / name)) << name;
}

TEST_F(Checkpoint, wrong_items_are_refused_before_anything_is_written) {
  const std::vector<float> values(12);
  const auto part = [&](int64_t offset, int64_t extent) {
    return SaveItem{{"x", DType::fp32, {12}}, {{offset}, {extent}}, reinterpret_cast<const std::byte*>(values.data())};
  };
  expect_error([&] { save(folder / "c", 1, {part(0, 6)}, {}); }, "tensor 'x' of shape [12]: elements in the box");
  expect_error([&] { save(folder / "c", 1, {part(0, 8), part(6, 6)}, {}); }, "tensor 'x' of shape [12]: pieces overlap");
  expect_error([&] { save(folder / "c", 1, {part(0, 12), part(0, 12)}, {}); }, "overlap");
  expect_error([&] { save(folder / "c", 1, {part(6, 12)}, {}); }, "outside");
  expect_error(
      [&] {
        save(folder / "c", 1, {whole_item({"x", DType::fp32, {12}}, values.data()), whole_item({"x", DType::bf16, {12}}, values.data())},
             {});
      },
      "given twice, as fp32 [12] and as bf16 [12]");
  expect_error([&] { save(folder / "c", 1, {whole_item({"a\nb", DType::fp32, {12}}, values.data())}, {}); }, "control characters");
  expect_error([&] { save(folder / "c", -1, {}, {}); }, "negative");
  EXPECT_TRUE(all(folder / "c").empty());
}

TEST_F(Checkpoint, saving_a_step_again_replaces_it_and_leaves_nothing_aside) {
  save(folder, 3, Sample::usual(1).items(), {{"x", "old"}});
  const Sample fresh = Sample::usual(2);
  const auto path = save(folder, 3, fresh.items(), {{"x", "new"}}).path;
  EXPECT_TRUE(fresh.is_in(path));
  EXPECT_EQ(Reader(path).extra("x"), "new");
  EXPECT_EQ(entries(), 1);
}

TEST_F(Checkpoint, newest_complete_checkpoint_is_found) {
  EXPECT_FALSE(latest(folder / "none"));
  EXPECT_FALSE(latest(folder));
  for (const int64_t step : {900, 1000, 99999999, 123456789}) save(folder, step, Sample::usual(1).items(), {}, {.retention = {.keep = 0}});
  fs::create_directories(folder / "step_1");  // not a name that ingot gives
  fs::create_directories(folder / "step_000012345x");
  EXPECT_EQ(all(folder).size(), 4u);
  EXPECT_EQ(latest(folder)->step, 123456789);
  put_content(folder / "step_123456789" / "metadata.bin", "damaged");
  EXPECT_EQ(latest(folder)->path, folder / "step_99999999");
  fs::resize_file(folder / "step_99999999" / "data_00000.bin", 100);
  EXPECT_EQ(latest(folder)->step, 1000);
  fs::remove(folder / "step_00001000" / "data_00000.bin");
  EXPECT_EQ(latest(folder)->step, 900);
}

TEST_F(Checkpoint, retention_keeps_the_newest_the_multiples_and_always_a_good_one) {
  const Sample sample = Sample::usual(1);
  for (int64_t step = 10; step <= 80; step += 10) save(folder, step, sample.items(), {}, {.retention = {.keep = 2, .keep_every = 40}});
  const auto steps = [&] {
    std::vector<int64_t> out;
    for (const auto& one : all(folder)) out.push_back(one.step);
    return out;
  };
  EXPECT_THAT(steps(), ElementsAre(40, 70, 80));
  EXPECT_EQ(entries(), 3);
  // The two newest are damaged: the last good one must outlive any pruning.
  put_content(folder / "step_00000070" / "metadata.bin", "x");
  put_content(folder / "step_00000080" / "metadata.bin", "x");
  prune(folder, {.keep = 1});
  EXPECT_THAT(steps(), ElementsAre(40, 70, 80));
  save(folder, 90, sample.items(), {}, {.retention = {.keep = 1}});
  EXPECT_THAT(steps(), ElementsAre(90));
}

TEST_F(Checkpoint, retention_keeps_those_with_the_lowest_scores) {
  const auto sample = Sample::usual(1);
  const std::map<int64_t, std::string> scores = {{10, "3.5"}, {20, "2.25"}, {30, "nan"}, {40, "2.5"},
                                                 {50, "0x"},  {60, "2.5"},  {70, ""},    {80, "4"}};
  for (const auto& [step, score] : scores) save(folder, step, sample.items(), {{kScoreExtra, score}}, {.retention = {.keep = 0}});
  const auto steps = [&](const Retention& retention) {
    std::vector<int64_t> removed;
    for (const auto& one : prunable(folder, retention)) removed.push_back(one.step);
    return removed;
  };
  EXPECT_THAT(steps({.keep = 1, .keep_best = 1}), ElementsAre(10, 30, 40, 50, 60, 70));
  EXPECT_THAT(steps({.keep = 1, .keep_best = 2}), ElementsAre(10, 30, 40, 50, 70)) << "of equals the newer";
  EXPECT_THAT(steps({.keep = 1, .keep_every = 50, .keep_best = 2}), ElementsAre(10, 30, 40, 70));
  EXPECT_THAT(steps({.keep = 1, .keep_best = 100}), ElementsAre(30, 50, 70)) << "what has no score is no best one";
  // Damage takes the best one its score.
  fs::resize_file(folder / "step_00000020" / "metadata.bin", 10);
  EXPECT_THAT(steps({.keep = 1, .keep_best = 1}), ElementsAre(10, 20, 30, 40, 50, 70));
}

TEST_F(Checkpoint, reader_protects_its_checkpoint_from_pruning) {
  const Sample sample = Sample::usual(1);
  save(folder, 1, sample.items(), {});
  {
    const Reader reader(folder / "step_00000001");
    save(folder, 2, sample.items(), {}, {.retention = {.keep = 1}});
    EXPECT_EQ(all(folder).size(), 2u);
    EXPECT_EQ(reader.read("mask").size(), 5u);
  }
  prune(folder, {.keep = 1});
  EXPECT_EQ(all(folder).size(), 1u);
}

TEST_F(Checkpoint, leftovers_of_dead_processes_are_collected_after_the_grace) {
  const fs::path dead = folder / ".step_00000005.tmp-00", foreign = folder / ".something.tmp-1";
  fs::create_directories(dead / "inner");
  put_content(dead / "data_00000.bin", "half");
  fs::create_directories(foreign);
  collect_leftovers(folder, 60);
  EXPECT_TRUE(fs::exists(dead)) << "younger than the grace";
  {
    const auto lease = local_storage().hold(dead, false);
    collect_leftovers(folder, 0);
    EXPECT_TRUE(fs::exists(dead)) << "held by a living process";
  }
  collect_leftovers(folder, 0);
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(foreign));
}

// A bug: the clock had been set back by hours, and what was written before was too young for as long.
TEST_F(Checkpoint, leftovers_from_before_the_clock_was_set_back_are_collected) {
  const fs::path dead = folder / ".step_00000005.tmp-00";
  fs::create_directories(dead);
  fs::last_write_time(dead, fs::file_time_type::clock::now() + std::chrono::hours(3));
  {
    const auto lease = local_storage().hold(dead, false);
    collect_leftovers(folder, 60);
    EXPECT_TRUE(fs::exists(dead)) << "held by a living process";
  }
  fs::last_write_time(dead, fs::file_time_type::clock::now() + std::chrono::hours(3));
  collect_leftovers(folder, 60);
  EXPECT_FALSE(fs::exists(dead));
}

TEST_F(Checkpoint, checkpoint_that_waited_to_be_replaced_gets_its_name_back) {
  const Sample sample = Sample::usual(1);
  save(folder, 5, sample.items(), {});
  fs::rename(folder / "step_00000005", folder / ".step_00000005.old");
  collect_leftovers(folder, 0);
  EXPECT_TRUE(sample.is_in(folder / "step_00000005"));
}

}  // namespace
}  // namespace ingot::checkpoint
