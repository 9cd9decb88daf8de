// Checkpoints in a bucket of this process: what requests they cost.
#include "object_store/object_storage.h"

#include <gmock/gmock.h>

#include "checkpoint/load/load.h"
#include "checkpoint/load/verify.h"
#include "checkpoint/save/writer.h"
#include "checkpoint/storage/folder.h"
#include "checkpoint/tests/test_support.h"
#include "object_store/test_server.h"

namespace ingot::object_store {
namespace {

using checkpoint::Sample;
using std::chrono::duration;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kFolder = "s3://bucket/run";

class Bucket : public ::testing::Test {
 protected:
  TestBucket bucket;
  const Sample small = Sample::usual(1), other = Sample::usual(2);
  // Longer than a part, so that it goes up in several.
  static Sample long_sample(uint64_t salt) {
    Sample sample(salt);
    sample.add("weight", tensor::DType::fp32, {1366, 1000});
    return sample;
  }

  std::unique_ptr<ObjectStorage> job() const { return std::make_unique<ObjectStorage>(bucket.options()); }
  static checkpoint::SaveReport save(const ObjectStorage& storage, int64_t step, const Sample& sample, int64_t keep = 2) {
    return checkpoint::save(kFolder, step, sample.items(), {{"x", "extra"}},
                            {.retention = {.keep = keep}, .piece_limit_bytes = 1 << 20, .grace_s = 0, .storage = &storage});
  }
  static std::string path_of(int64_t step) { return std::string(kFolder) + "/" + checkpoint::step_name(step); }
};

// -- wide loads ---------------------------------------------------------------------------------------------------------------

// A load had four requests of 1 MiB under way, whatever the latency.
TEST_F(Bucket, a_load_keeps_sixteen_ranges_in_flight) {
  Sample sample(7);
  sample.add("weight", tensor::DType::fp32, {40, 1 << 18});  // 40 MiB
  const auto storage = job();
  checkpoint::save(kFolder, 1, sample.items(), {}, {.piece_limit_bytes = 1 << 20, .storage = storage.get()});
  std::mutex mutex;
  std::condition_variable changed;
  int in_flight = 0, most = 0;
  bucket.set_before([&](const Asked& asked) -> std::optional<Answer> {
    if (asked.method != "GET" || asked.path.find("data_") == std::string::npos || asked.header("range") == "bytes=0-63") return {};
    std::unique_lock lock(mutex);
    most = std::max(most, ++in_flight);
    changed.notify_all();
    changed.wait_for(lock, std::chrono::milliseconds(300), [&] { return most == 16; });
    --in_flight;
    return {};
  });
  std::string content(40 << 20, '\0');
  const checkpoint::TeamReader reader(path_of(1), {.storage = storage.get()});
  reader.load({{"weight", tensor::whole({40, 1 << 18}), reinterpret_cast<std::byte*>(content.data())}});
  EXPECT_EQ(most, 16);
  EXPECT_TRUE(content == sample.tensors()[0].second);
  in_flight = most = 0;
  EXPECT_TRUE(checkpoint::verify(path_of(1), *storage).sound());
  EXPECT_GT(most, 2);
  bucket.set_before({});
}

// A piece was read in requests of 1 MiB.
TEST_F(Bucket, a_piece_is_one_request_of_up_to_eight_mib) {
  Sample sample(7);
  sample.add("weight", tensor::DType::fp32, {16, 1 << 18});  // 16 MiB
  const auto storage = job();
  checkpoint::save(kFolder, 1, sample.items(), {}, {.storage = storage.get()});
  std::atomic<int> ranges = 0;
  bucket.set_before([&](const Asked& asked) -> std::optional<Answer> {
    if (asked.method == "GET" && asked.path.find("data_") != std::string::npos && asked.header("range") != "bytes=0-63") ++ranges;
    return {};
  });
  EXPECT_TRUE(sample.is_in(path_of(1), *storage));
  EXPECT_EQ(ranges, 2);
  bucket.set_before({});
}

// Both in one run: four requests of 1 MiB, as it was, and those of now, when each request takes 20 ms to begin.
TEST_F(Bucket, a_load_hides_the_latency_of_requests) {
  constexpr int64_t kMib = 1 << 20, kMibs = 64;
  Sample sample(7);
  sample.add("weight", tensor::DType::fp32, {kMibs, 1 << 18});
  checkpoint::save(kFolder, 1, sample.items(), {}, {.storage = job().get()});
  bucket.set_before([](const Asked& asked) -> std::optional<Answer> {
    if (asked.method == "GET") std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return {};
  });
  const auto seconds = [&](ClientOptions options) {
    const ObjectStorage storage(std::move(options));
    std::string content(static_cast<size_t>(kMibs * kMib), '\0');
    const checkpoint::TeamReader reader(path_of(1), {.storage = &storage});
    const auto start = std::chrono::steady_clock::now();
    reader.load({{"weight", tensor::whole({kMibs, 1 << 18}), reinterpret_cast<std::byte*>(content.data())}});
    const double spent_s = duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_TRUE(content == sample.tensors()[0].second);
    return spent_s;
  };
  auto narrow = bucket.options();
  narrow.connections = 4;
  narrow.range_bytes = kMib;
  const double before_s = seconds(narrow), now_s = seconds(bucket.options());
  const double mib_to_mb = static_cast<double>(kMib) / 1e6;
  std::printf("%.0f MB/s with four requests of 1 MiB, %.0f MB/s with sixteen of 8 MiB\n", kMibs * mib_to_mb / before_s,
              kMibs * mib_to_mb / now_s);
  EXPECT_GT(before_s / now_s, 1.5);
  bucket.set_before({});
}

// A range that fails is asked for again, and the others go on.
TEST_F(Bucket, a_wide_load_tries_failed_ranges_again) {
  const auto sample = long_sample(3);
  const auto storage = job();
  save(*storage, 1, sample);
  std::atomic<int> asked_for = 0;
  bucket.set_before([&](const Asked& asked) -> std::optional<Answer> {
    if (asked.method != "GET" || asked.path.find("data_") == std::string::npos) return {};
    const int n = asked_for++;
    if (n % 3 == 1) return Answer{503, "<Error><Code>SlowDown</Code></Error>"};
    if (n % 3 == 2) return Answer{.closes = true};
    return {};
  });
  EXPECT_TRUE(sample.is_in(path_of(1), *storage));
  bucket.set_before({});
}

// -- counts of requests ---------------------------------------------------------------------------------------------------------

// latest, prune and load opened every file of the newest checkpoints, by two requests each.
TEST_F(Bucket, requests_are_few_whatever_the_number_of_files) {
  const auto storage = job();
  const auto sample = long_sample(1);
  const auto save_in_files = [&](int64_t step) {
    checkpoint::save(kFolder, step, sample.items(), {},
                     {.retention = {.keep = 2}, .piece_limit_bytes = 1 << 19, .file_limit_bytes = 1 << 20, .storage = storage.get()});
  };
  save_in_files(1);
  save_in_files(2);
  const size_t files = checkpoint::load_metadata(path_of(2), *storage).files.size();
  ASSERT_GE(files, 5u);

  bucket.take_log();
  EXPECT_EQ(checkpoint::latest(kFolder, *storage)->step, 2);
  EXPECT_THAT(bucket.take_log(),
              ElementsAre("GET LIST run/", "GET LIST run/step_", "GET LIST run/step_00000002/", "GET run/step_00000002/metadata.bin"));

  EXPECT_THAT(checkpoint::prunable(kFolder, {.keep = 2}, *storage), IsEmpty());
  EXPECT_THAT(bucket.take_log(),
              ElementsAre("GET LIST run/", "GET LIST run/step_", "GET LIST run/step_00000002/", "GET run/step_00000002/metadata.bin",
                          "GET LIST run/step_00000001/", "GET run/step_00000001/metadata.bin"));

  // The header of each file that is read, and its pieces: one request each.
  const size_t pieces = checkpoint::load_metadata(path_of(2), *storage).tensors[0].pieces.size();
  bucket.take_log();
  std::string content(1366 * 4000, '\0');
  const checkpoint::TeamReader reader(path_of(2), {.storage = storage.get()});
  EXPECT_EQ(bucket.take_log().size(), 3u) << "HEAD and GET of the metadata, one listing";
  reader.load({{"weight", tensor::whole({1366, 1000}), reinterpret_cast<std::byte*>(content.data())}});
  EXPECT_EQ(bucket.take_log().size(), files + pieces);
}

// A file that was cut, or is not there, is known from the listing.
TEST_F(Bucket, files_that_are_cut_or_missing_are_passed_over_by_the_listing) {
  const auto storage = job();
  save(*storage, 1, small);
  save(*storage, 2, other);
  std::string file;
  for (const auto& key : bucket.keys())
    if (key.find("step_00000002/data_") != std::string::npos) file = key;
  const auto content = bucket.objects().at(file).content;
  bucket.put(file, content.substr(0, content.size() - 1));
  EXPECT_EQ(checkpoint::latest(kFolder, *storage)->step, 1);
  try {
    checkpoint::Reader(path_of(2), {.storage = storage.get()});
    ADD_FAILURE();
  } catch (const base::CheckpointError& damage) {
    EXPECT_THAT(damage.what(),
                AllOf(HasSubstr(file), HasSubstr(fmt::format("{} bytes instead of {}", content.size() - 1, content.size()))));
  }
  Client(bucket.options()).remove(file);
  EXPECT_EQ(checkpoint::latest(kFolder, *storage)->step, 1);
}

// Parts of a writer that was killed before its first object was complete were in no listing of objects; nothing ever removed them.
TEST_F(Bucket, without_a_lock_young_parts_stay_for_a_day) {
  const Client client(bucket.options());
  client.create_upload("run/step_00000005/data_00000-0123456789ab.bin");
  bucket.grow_older(3600);
  save(*job(), 6, small);
  EXPECT_EQ(bucket.uploads(), 1u);
  bucket.grow_older(86400);
  save(*job(), 7, small);
  EXPECT_EQ(bucket.uploads(), 0u);
}

}  // namespace
}  // namespace ingot::object_store
