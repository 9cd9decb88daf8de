#include "bench/storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "bench/data_loading.h"

namespace ingot::bench {
namespace {

using ::testing::HasSubstr;

struct StorageTest : ::testing::Test {
  fs::path folder = fs::temp_directory_path() / ("ingot_storage_test_" + std::to_string(::getpid()));
  StorageTest() { fs::create_directories(folder); }
  ~StorageTest() override { fs::remove_all(folder); }

  StorageOptions small() const {
    return {.folder = folder, .size_bytes = int64_t{8} << 20, .writers = {1, 2}, .block_bytes = {4096, 16384}, .seconds = 0.02};
  }
  StorageReport measure(const StorageOptions& options) const {
    return measure_storage(
        options, [](size_t, size_t, const std::string&) {}, [] { return false; });
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder)) all.push_back(entry.path().filename());
    return all;
  }
};

TEST(Quantiles, are_values_of_the_list_by_nearest_rank) {
  std::vector<double> hundred;
  for (int i = 100; i > 0; --i) hundred.push_back(i);
  EXPECT_EQ(quantile_of(hundred, 0.5), 50);
  EXPECT_EQ(quantile_of(hundred, 0.99), 99);
  EXPECT_EQ(quantile_of(hundred, 1), 100);
  std::vector<double> one = {7}, none;
  EXPECT_EQ(quantile_of(one, 0.99), 7);
  EXPECT_EQ(quantile_of(none, 0.5), 0);
}

TEST_F(StorageTest, every_operation_is_measured_with_every_number_of_writers_and_the_folder_is_left_as_it_was) {
  base::write_file_atomically(folder / "mine", "stays");
  size_t told = 0, all = 0;
  const auto report = measure_storage(
      small(), [&](size_t done, size_t count, const std::string&) { told = done + 1, all = count; }, [] { return false; });
  EXPECT_TRUE(report.complete);
  EXPECT_EQ(told, all);
  EXPECT_EQ(report.results.size(), all);
  EXPECT_EQ(names(), std::vector<std::string>{"mine"});
  EXPECT_EQ(base::read_file(folder / "mine"), "stays");
  std::set<std::tuple<std::string, int64_t, int64_t, bool>> measured;
  for (const auto& result : report.results) {
    const auto& r = result.rate;
    EXPECT_TRUE(measured.emplace(r.operation, r.block_bytes, r.writers, r.direct).second);
    EXPECT_GT(r.operations_per_s, 0) << r.operation;
    EXPECT_GE(r.p99_s, r.p50_s) << r.operation;
    EXPECT_EQ(r.folder_type, report.folder_type);
    EXPECT_GE(result.seconds, result.sync_s);
    // Bytes and operations of one measurement agree, but for files that hold nothing.
    EXPECT_NEAR(r.bytes_per_s, r.operation == "unlink" ? 0 : r.operations_per_s * static_cast<double>(r.block_bytes), 1e-6 * r.bytes_per_s);
    const bool writes =
        r.operation == "sequential_write" || r.operation == "random_write" || r.operation == "create" || r.operation == "checkpoint_write";
    EXPECT_EQ(result.sync_s > 0, writes || r.operation == "unlink") << r.operation;
  }
  for (const bool direct : {false, true}) {
    if (direct && !report.direct_refusal.empty()) continue;
    for (const int64_t writers : {1, 2})
      for (const int64_t block : {4096, 16384})
        for (const char* operation : {"random_read", "random_write"})
          EXPECT_TRUE(measured.contains({operation, block, writers, direct})) << operation << block;
  }
  const auto* best = report.best_random_read(4096);
  ASSERT_TRUE(best);
  EXPECT_EQ(best->rate.direct, report.direct_refusal.empty());
  EXPECT_EQ(report.best_random_read(8192), nullptr);
}

TEST_F(StorageTest, random_operations_touch_each_block_once_at_most) {
  auto options = small();
  options.seconds = 60;  // they end because nothing is left
  options.writers = {2};
  options.block_bytes = {65536};
  for (const auto& result : measure(options).results)
    EXPECT_EQ(result.operations == (int64_t{8} << 20) / 65536, result.rate.operation.starts_with("random")) << result.rate.operation;
}

TEST_F(StorageTest, stopping_keeps_what_was_measured_and_cleans_up) {
  std::atomic<bool> stopped = false;
  const auto report = measure_storage(
      small(), [&](size_t done, size_t, const std::string&) { stopped = done == 5; }, [&] { return stopped.load(); });
  EXPECT_FALSE(report.complete);
  EXPECT_EQ(report.results.size(), 5u);
  EXPECT_TRUE(names().empty());
}

TEST_F(StorageTest, a_budget_ends_it_between_two_measurements) {
  auto options = small();
  options.budget_s = 1e-9;
  const auto report = measure(options);
  EXPECT_FALSE(report.complete);
  EXPECT_TRUE(report.results.empty());
}

TEST_F(StorageTest, a_failure_in_the_middle_cleans_up_too) {
  EXPECT_THROW(measure_storage(
                   small(),
                   [](size_t done, size_t, const std::string&) {
                     if (done == 4) throw base::FileError("a disk that breaks");
                   },
                   [] { return false; }),
               base::FileError);
  EXPECT_TRUE(names().empty());
}

TEST_F(StorageTest, files_of_others_stay_and_keep_their_folder) {
  fs::path own;
  {
    ScratchFolder scratch(folder, "test");
    own = scratch.path();
    scratch.create("a");
    base::write_file_atomically(own / "other", "stays");
    EXPECT_THROW(scratch.create("other"), base::FileError);
    EXPECT_EQ(base::read_file(own / "other"), "stays");
    fs::create_symlink(folder / "outside", own / "link");
    EXPECT_THROW(scratch.create("link"), base::FileError);
    EXPECT_FALSE(fs::exists(folder / "outside"));
  }
  EXPECT_TRUE(fs::exists(own / "other"));
  EXPECT_FALSE(fs::exists(own / "a"));
}

std::string refusal_of(const StorageOptions& options) {
  try {
    measure_storage(
        options, [](size_t, size_t, const std::string&) {}, [] { return false; });
  } catch (const base::UsageError& error) {
    return error.what();
  }
  return "";
}

TEST_F(StorageTest, impossible_wishes_are_refused_before_anything_is_written) {
  auto options = small();
  options.size_bytes = int64_t{1} << 43;  // more than any disk of a test machine has free
  EXPECT_THAT(refusal_of(options), HasSubstr("smaller --size"));
  options = small();
  options.block_bytes = {1000};
  EXPECT_THAT(refusal_of(options), HasSubstr("multiple of 4K"));
  options = small();
  options.writers = {64};
  EXPECT_THAT(refusal_of(options), HasSubstr("64 writers with these blocks need at least 64.0 MiB"));
  options = small();
  options.writers = {0};
  EXPECT_THAT(refusal_of(options), HasSubstr("--writers"));
  options = small();
  options.folder /= "missing";
  EXPECT_THAT(refusal_of(options), HasSubstr("is not a folder"));
  EXPECT_TRUE(names().empty());
}

TEST_F(StorageTest, table_and_json_say_what_was_not_measured) {
  StorageReport report{
      .folder = "/x", .folder_type = "tmpfs", .size_bytes = 1 << 20, .direct_refusal = "tmpfs does not open files with O_DIRECT"};
  StorageResult read;
  read.rate = {"random_read", "tmpfs", 4096, 4, false, 4.096e8, 1e5, 2e-6, 3e-3};
  read.cached_share = 1;
  report.results = {read};
  const auto text = to_table(report);
  EXPECT_THAT(text, HasSubstr("past the page cache: not measured, tmpfs"));
  EXPECT_THAT(text, HasSubstr("409.6     100000     2.0 us    3.00 ms"));
  EXPECT_THAT(text, HasSubstr("100 % in cache"));
  const auto json = to_json(report);
  EXPECT_EQ(json["results"][0]["operations_per_s"], 1e5);
  EXPECT_EQ(json["results"][0]["cached_share"], 1);
}

struct LoadingTest : StorageTest {
  data::DataConfig config(int64_t seq_len, const std::string& packing) const {
    data::DataConfig c;
    c.sources = {{(folder / "d").string(), 1}};
    c.seq_len = seq_len;
    c.packing = packing;
    return c;
  }
};

TEST_F(LoadingTest, pages_of_a_stream_are_those_of_a_row_and_of_the_token_after_it) {
  write_simulated_dataset(folder / "d", 20 * 4096, 300, 100'000);  // 4-byte tokens
  const data::Loader loader(config(4096, "stream"), data::Split::train);
  const auto pattern = read_pattern(loader, 0, 19, 4096);
  // Rows begin at multiples of 16 KiB; the last target lies on the next page.
  EXPECT_EQ(pattern.pages, 5);
  EXPECT_EQ(pattern.pieces, 1);
  EXPECT_EQ(pattern.extra_pages, 1);
  EXPECT_EQ(pattern.scatter, 1.25);
  // By the definition of a page, row by row; the first row of 1023 tokens and one after them fills a page to its end.
  for (const int64_t seq : {1000, 1023}) {
    const data::Loader odd(config(seq, "stream"), data::Split::train);
    int64_t pages = 0;
    for (int64_t row = 0; row < odd.samples(); ++row) {
      const int64_t first = row * seq * 4, last = first + seq * 4 + 3;
      pages += last / 4096 - first / 4096 + 1;
    }
    EXPECT_DOUBLE_EQ(read_pattern(odd, 0, odd.samples(), 4096).pages, static_cast<double>(pages) / static_cast<double>(odd.samples()));
  }
}

TEST_F(LoadingTest, packed_documents_lie_in_more_places_than_a_stream) {
  write_simulated_dataset(folder / "d", 200 * 1024, 200, 100'000);
  const data::Loader stream(config(1024, "stream"), data::Split::train), packed(config(1024, "best_fit"), data::Split::train);
  const auto one = read_pattern(stream, 0, 100, 4096), many = read_pattern(packed, 0, 100, 4096);
  EXPECT_EQ(one.pieces, 1);
  EXPECT_GT(many.pieces, 3);
  EXPECT_GT(many.scatter, one.scatter);
  EXPECT_GE(many.most_pages, static_cast<int64_t>(many.pages));
}

TEST_F(LoadingTest, simulated_documents_have_the_asked_mean_and_ids_of_the_vocabulary) {
  write_simulated_dataset(folder / "d", 300'000, 250, 500);
  const data::IndexedDataset dataset(folder / "d");
  EXPECT_EQ(dataset.token_type(), data::TokenType::uint16);
  EXPECT_NEAR(static_cast<double>(dataset.tokens()) / static_cast<double>(dataset.documents()), 250, 25);
  std::vector<int32_t> all(static_cast<size_t>(dataset.tokens()));
  dataset.read(0, all);
  EXPECT_LT(*std::max_element(all.begin(), all.end()), 500);
}

}  // namespace
}  // namespace ingot::bench
