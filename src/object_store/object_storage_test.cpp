// Checkpoints in a bucket of this process: what requests they cost, what a writer that is killed leaves, and that only one may write.
#include "object_store/object_storage.h"

#include <gmock/gmock.h>
#include <sys/wait.h>

#include <csignal>

#include "checkpoint/load/load.h"
#include "checkpoint/load/verify.h"
#include "checkpoint/save/writer.h"
#include "checkpoint/storage/folder.h"
#include "checkpoint/tests/test_support.h"
#include "object_store/multipart.h"
#include "object_store/test_server.h"

namespace ingot::object_store {
namespace {

using checkpoint::Sample;
using std::chrono::duration;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kFolder = "s3://bucket/run";
constexpr double kLease_s = 0.4;

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

  std::unique_ptr<ObjectStorage> job(double lease_s = kLease_s) const {
    return std::make_unique<ObjectStorage>(bucket.options(), StorageOptions{.part_bytes = kSmallestPartBytes, .lease_s = lease_s});
  }
  static checkpoint::SaveReport save(const ObjectStorage& storage, int64_t step, const Sample& sample, int64_t keep = 2) {
    return checkpoint::save(kFolder, step, sample.items(), {{"x", "extra"}},
                            {.retention = {.keep = keep}, .piece_limit_bytes = 1 << 20, .grace_s = 0, .storage = &storage});
  }
  static std::string path_of(int64_t step) { return std::string(kFolder) + "/" + checkpoint::step_name(step); }
  // Keys that no visible checkpoint names, but for the lock.
  std::vector<std::string> strays(const ObjectStorage& storage) const {
    std::set<std::string> named{"run/.lock"};
    for (const auto& one : checkpoint::all(kFolder, storage)) {
      const auto folder = "run/" + one.path.filename().string() + "/";
      named.insert(folder + "metadata.bin");
      for (const auto& file : checkpoint::load_metadata(one.path, storage).files) named.insert(folder + file.name);
    }
    std::vector<std::string> strays;
    for (const auto& key : bucket.keys())
      if (!named.contains(key)) strays.push_back(key);
    return strays;
  }
};

// -- wide loads ---------------------------------------------------------------------------------------------------------------

// A load had four requests of 1 MiB under way, whatever the latency.
TEST_F(Bucket, a_load_keeps_sixteen_ranges_in_flight) {
  Sample sample(7);
  sample.add("weight", tensor::DType::fp32, {40, 1 << 18});  // 40 MiB
  const auto storage = job(30);
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
  const auto storage = job(30);
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
  checkpoint::save(kFolder, 1, sample.items(), {}, {.storage = job(30).get()});
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
  const auto storage = job(30);
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
  const auto storage = job(30);
  const auto lock = storage->lock_writers(kFolder, "a run", duration<double>(0));
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

  // A whole save: what lies there, the files, the commit, what is kept, and the removal of the oldest.
  save_in_files(3);
  const auto log = bucket.take_log();
  const auto puts = static_cast<size_t>(std::count_if(
      log.begin(), log.end(), [](const auto& line) { return line.starts_with("PUT ") && line.find("/data_") != std::string::npos; }));
  EXPECT_EQ(puts, files);
  std::vector<std::string> rest;
  for (const auto& line : log)
    if (line.find("/data_") == std::string::npos) rest.push_back(line);
  EXPECT_EQ(rest.size(), 3u + 3u + 2u + 4u + 5u) << ::testing::PrintToString(rest);
}

// A file that was cut, or is not there, is known from the listing.
TEST_F(Bucket, files_that_are_cut_or_missing_are_passed_over_by_the_listing) {
  const auto storage = job(30);
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

// -- what dead writers leave ------------------------------------------------------------------------------------------------------

// A writer that was killed before its first object was complete left parts that no listing of objects shows; nothing ever removed them.
TEST_F(Bucket, parts_of_a_dead_writer_go_with_the_next_save) {
  const auto storage = job(30);
  const Client client(bucket.options());
  const auto upload = client.create_upload("run/step_00000005/data_00000-0123456789ab.bin");
  client.upload_part(upload, 1, bytes_of("part"));
  client.create_upload("run/step_00000009_else/of_another");
  client.create_upload("elsewhere/step_00000005/data_00000-0123456789ab.bin");
  bucket.grow_older(10);
  save(*storage, 6, small);
  EXPECT_EQ(bucket.uploads(), 2u) << "those of others stay";
}

// Listing uploads is a permission of its own, and not all stores know it.
TEST_F(Bucket, a_save_goes_on_where_uploads_cannot_be_listed) {
  bucket.set_before([](const Asked& asked) {
    const bool lists = asked.has("uploads") && asked.method == "GET";
    return lists ? std::optional(Answer{403, "<Error><Code>AccessDenied</Code></Error>"}) : std::nullopt;
  });
  const auto storage = job();
  ::testing::internal::CaptureStderr();
  for (const int64_t step : {1, 2, 3}) save(*storage, step, small);
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, AllOf(HasSubstr("ListBucketMultipartUploads"), HasSubstr("lifecycle rule")));
  EXPECT_EQ(said.find("lifecycle"), said.rfind("lifecycle")) << "once";
  EXPECT_THAT(strays(*storage), IsEmpty());
  EXPECT_EQ(checkpoint::all(kFolder, *storage).size(), 2u);
  bucket.set_before({});
}

TEST_F(Bucket, without_a_lock_young_parts_stay_for_a_day) {
  bucket.knows_conditions = false;
  const Client client(bucket.options());
  client.create_upload("run/step_00000005/data_00000-0123456789ab.bin");
  bucket.grow_older(3600);
  save(*job(), 6, small);
  EXPECT_EQ(bucket.uploads(), 1u);
  bucket.grow_older(86400);
  save(*job(), 7, small);
  EXPECT_EQ(bucket.uploads(), 0u);
}

// Files of an earlier save of the same step lay in the visible folder for ever.
TEST_F(Bucket, what_lies_beside_a_checkpoint_goes_with_the_next_save) {
  const auto storage = job(30);
  save(*storage, 1, small);
  bucket.put("run/step_00000001/data_00000-0123456789ab.bin", "of a save that was killed");
  bucket.put("run/step_00000001/.metadata-step_00000001.tmp-0123456789ab", "as earlier versions left it");
  bucket.grow_older(10);
  save(*storage, 2, other);
  EXPECT_THAT(strays(*storage), IsEmpty());
  EXPECT_TRUE(small.is_in(path_of(1), *storage) && other.is_in(path_of(2), *storage));
}

// A save was called failed although its checkpoint was visible: a request after the one that made it so had failed.
TEST_F(Bucket, a_save_that_is_visible_is_not_called_failed) {
  const auto storage = job(30);
  const auto lock = storage->lock_writers(kFolder, "a run", duration<double>(0));
  save(*storage, 1, small);
  std::atomic<bool> committed = false;
  std::atomic<int> lost = 0;
  bucket.set_before([&](const Asked& asked) -> std::optional<Answer> {
    const bool is_commit = asked.method == "PUT" && asked.path == "/bucket/run/step_00000002/metadata.bin";
    committed = committed || is_commit;
    // From there on nothing is changed any more.
    return committed && !is_commit && (asked.method == "PUT" || asked.method == "POST" || asked.method == "DELETE")
               ? std::optional(Answer{403, "<Error><Code>AccessDenied</Code></Error>"})
               : std::nullopt;
  });
  EXPECT_NO_THROW(save(*storage, 2, other));
  bucket.set_before({});
  EXPECT_TRUE(other.is_in(path_of(2), *storage));

  // The answer to that one request is lost each time: it is looked for.
  bucket.set_before([&](const Asked& asked) -> std::optional<Answer> {
    if (asked.method != "PUT" || asked.path != "/bucket/run/step_00000003/metadata.bin") return {};
    ++lost;
    bucket.put("run/step_00000003/metadata.bin", asked.body);
    return Answer{.closes = true};
  });
  EXPECT_NO_THROW(save(*storage, 3, other));
  EXPECT_GT(lost, 0);
  bucket.set_before({});
  EXPECT_TRUE(other.is_in(path_of(3), *storage));
}

constexpr const char* kVictim = "victim";  // access key of the process that is killed
bool is_of_victim(const Asked& asked) { return asked.header("authorization").find(kVictim) != std::string::npos; }

// Kills a save in a process of its own when it makes request `at`; true when it ended before that.
bool is_over_before(TestBucket& bucket, int at, const std::function<void()>& work) {
  std::atomic<int> count = 0;
  std::atomic<pid_t> child = 0;
  int go[2];
  if (::pipe(go) != 0) throw std::runtime_error("pipe");
  bucket.set_before([&](const Asked&) -> std::optional<Answer> {
    if (count++ < at) return {};
    ::kill(child, SIGKILL);
    return Answer{.closes = true};
  });
  child = ::fork();
  if (child == 0) {
    char byte;
    if (::read(go[0], &byte, 1) != 1) ::_exit(3);
    try {
      work();
    } catch (const std::exception& failure) {
      std::fputs(failure.what(), stderr);
      ::_exit(1);
    }
    ::_exit(0);
  }
  if (::write(go[1], "g", 1) != 1) throw std::runtime_error("pipe");
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(go[0]);
  ::close(go[1]);
  // What it has sent still, no store would have yet.
  bucket.set_before([](const Asked& asked) { return is_of_victim(asked) ? std::optional(Answer{.closes = true}) : std::nullopt; });
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
  return WIFEXITED(status);
}

// For every request of a save, with one old checkpoint that goes and one that stays.
TEST_F(Bucket, a_save_that_is_killed_at_any_request_costs_nothing) {
  const auto longer = long_sample(3), next = Sample::usual(4);
  const auto check = [&](int64_t step, bool is_over) {
    const auto storage = job();
    const auto newest = checkpoint::latest(kFolder, *storage);
    ASSERT_TRUE(newest);
    const bool is_new = newest->step == step && longer.is_in(newest->path, *storage);
    EXPECT_TRUE(is_new || (newest->step == 2 && other.is_in(newest->path, *storage)));
    EXPECT_TRUE(is_new || !is_over);
    for (const auto& one : checkpoint::all(kFolder, *storage))
      EXPECT_TRUE(checkpoint::Reader(one.path, {.storage = storage.get()}).has_extra("x"));
    save(*storage, 4, next);
    EXPECT_EQ(checkpoint::latest(kFolder, *storage)->step, 4);
    EXPECT_TRUE(next.is_in(path_of(4), *storage));
    EXPECT_THAT(strays(*storage), IsEmpty());
    EXPECT_EQ(bucket.uploads(), 0u);
  };
  // A new step; and a step that is there already, which changes its content.
  for (const int64_t step : {3, 2}) {
    int requests = 0;
    for (bool is_over = false; !is_over; ++requests) {
      SCOPED_TRACE(fmt::format("step {}, request {}", step, requests));
      ASSERT_LT(requests, 100);
      bucket.clear();
      {
        const auto storage = job();
        save(*storage, 1, small);
        save(*storage, 2, other);
      }
      is_over = is_over_before(bucket, requests, [&] {
        auto options = bucket.options();
        options.account.credentials.access_key_id = kVictim;
        save(ObjectStorage(options, {.part_bytes = kSmallestPartBytes, .lease_s = kLease_s}), step, longer);
      });
      check(step, is_over);
      if (HasFailure()) return;
    }
    EXPECT_GT(requests, 20);
  }
}

// -- one writer -------------------------------------------------------------------------------------------------------------------

// The holder was forgotten when the lock was renewed while it was read.
TEST_F(Bucket, a_second_job_is_told_who_writes_into_a_folder) {
  const auto first = job(2), second = job(2);
  // Each second look at what stands there meets a change.
  std::atomic<int> looks = 0;
  bucket.set_before([&](const Asked& asked) -> std::optional<Answer> {
    if (asked.method != "GET" || asked.path != "/bucket/run/.lock" || looks++ % 2 == 0) return {};
    return Answer{412, "<Error><Code>PreconditionFailed</Code></Error>"};
  });
  const auto lock = first->lock_writers(kFolder, "process 1 on machine-a", duration<double>(0));
  ASSERT_TRUE(lock);
  try {
    second->lock_writers(kFolder, "the second", duration<double>(0));
    ADD_FAILURE() << "both have it";
  } catch (const base::ConfigError& refusal) {
    EXPECT_THAT(refusal.what(),
                AllOf(HasSubstr("s3://bucket/run/.lock"), HasSubstr("process 1 on machine-a"), HasSubstr("checkpoint.folder")));
  }
  try {
    save(*second, 5, other);
    ADD_FAILURE() << "both save";
  } catch (const base::CheckpointError& refusal) {
    EXPECT_THAT(refusal.what(), HasSubstr("process 1 on machine-a"));
  }
  save(*first, 5, small);
  EXPECT_TRUE(small.is_in(path_of(5), *first));
  EXPECT_TRUE(second->lock_writers("s3://bucket/run/b", "the second", duration<double>(0))) << "another folder";
  bucket.set_before({});
}

TEST_F(Bucket, a_lock_goes_with_its_holder_and_is_waited_for) {
  const auto first = job(2), second = job(2);
  auto lock = first->lock_writers(kFolder, "the first", duration<double>(0));
  std::thread ending([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    lock.reset();
  });
  EXPECT_TRUE(second->lock_writers(kFolder, "the second", duration<double>(20)));
  ending.join();
  EXPECT_THAT(bucket.keys(), IsEmpty()) << "and leaves nothing";
}

// What stands there is of a machine that is gone: nothing changes it.
TEST_F(Bucket, a_lock_that_nobody_renews_is_taken_over_after_its_lease) {
  for (const char* left : {R"({"holder": "process 7 on machine-b", "lease_s": 0.3})", "garbage", "",
                           R"({"holder": 3, "lease_s": -1, "process": -1})", "[[[[["}) {
    bucket.put("run/.lock", left);
    EXPECT_TRUE(job()->lock_writers(kFolder, "the next", duration<double>(0))) << left;
    EXPECT_FALSE(bucket.keys().contains("run/.lock"));
  }
}

// A job that was away for longer than its lease: another has taken over, and what it then finishes must not become visible.
TEST_F(Bucket, who_has_lost_the_lock_cannot_commit) {
  const auto first = job(), second = job();
  const auto lock = first->lock_writers(kFolder, "the first", duration<double>(0));
  bucket.put("run/.lock", R"({"holder": "process 7 on machine-b", "lease_s": 30})");  // as if it had taken it over
  const auto sink = first->create("s3://bucket/run/.step_00000001.tmp-aa/metadata.bin");
  sink->write("x", 1);
  sink->finish();
  const auto commit = [&] { first->publish("s3://bucket/run/.step_00000001.tmp-aa", "s3://bucket/run/step_00000001"); };
  try {
    commit();
    ADD_FAILURE() << "it was published";
  } catch (const base::CheckpointError& refusal) {
    EXPECT_THAT(refusal.what(), AllOf(HasSubstr("taken over by process 7 on machine-b"), HasSubstr("only one job")));
  }
  EXPECT_THAT(bucket.keys(), ElementsAre("run/.lock"));
}

// A put of a job that was away arrives late: only upon what this one has seen may it commit.
TEST_F(Bucket, a_commit_replaces_only_what_it_has_seen) {
  const auto storage = job(30);
  const auto lock = storage->lock_writers(kFolder, "a run", duration<double>(0));
  save(*storage, 1, small);
  for (const int64_t step : {1, 2}) {
    const auto key = fmt::format("run/step_{:08}/metadata.bin", step);
    bucket.set_before([&](const Asked& asked) -> std::optional<Answer> {
      if (asked.method == "PUT" && asked.path == "/bucket/" + key) bucket.put(key, "of another");
      return {};
    });
    EXPECT_THROW(save(*storage, step, other), base::CheckpointError) << step;
    bucket.set_before({});
    EXPECT_EQ(bucket.objects().at(key).content, "of another");
  }
}

// A process of this machine that is dead is not waited for.
TEST_F(Bucket, the_lock_of_a_dead_process_is_taken_over_at_once) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto storage = job(30);
    const auto lock = storage->lock_writers(kFolder, "the dead one", duration<double>(0));
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status) && bucket.keys().contains("run/.lock"));
  const auto storage = job(30);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(storage->lock_writers(kFolder, "the next", duration<double>(0)));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

// Giving up a save removes what this process wrote, not what the job that took over is writing into the same step.
TEST_F(Bucket, a_save_that_is_given_up_leaves_those_of_others) {
  const auto storage = job();
  const std::string hidden = "s3://bucket/run/.step_00000001.tmp-0123456789abcdef";
  storage->make_folder(hidden);
  bucket.put("run/step_00000001/data_00000-0123456789ab.bin", "own");
  bucket.put("run/step_00000001/data_00000-ba9876543210.bin", "of another");
  const Client client(bucket.options());
  client.create_upload("run/step_00000001/data_00001-0123456789ab.bin");
  client.create_upload("run/step_00000001/data_00001-ba9876543210.bin");
  storage->remove_folder(hidden);
  EXPECT_THAT(bucket.keys(), ElementsAre("run/step_00000001/data_00000-ba9876543210.bin"));
  EXPECT_EQ(bucket.uploads(), 1u);
}

TEST_F(Bucket, a_lock_is_renewed_as_long_as_it_is_held) {
  const auto storage = job();
  const auto lock = storage->lock_writers(kFolder, "the first", duration<double>(0));
  const auto before = bucket.objects().at("run/.lock").etag;
  std::this_thread::sleep_for(duration<double>(2 * kLease_s));
  EXPECT_NE(bucket.objects().at("run/.lock").etag, before);
  save(*storage, 1, small);
}

TEST_F(Bucket, a_store_without_conditional_writes_is_warned_of) {
  for (const bool refuses : {false, true}) {
    bucket.clear();
    bucket.knows_conditions = false;
    if (refuses)
      bucket.set_before([](const Asked& asked) -> std::optional<Answer> {
        if (asked.header("if-none-match").empty()) return {};
        return Answer{501, "<Error><Code>NotImplemented</Code><Message>A header is not known</Message></Error>"};
      });
    const auto storage = job();
    ::testing::internal::CaptureStderr();
    EXPECT_FALSE(storage->lock_writers(kFolder, "the first", duration<double>(0)));
    save(*storage, 1, small);
    const auto said = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, AllOf(HasSubstr("nothing keeps a second job out"), HasSubstr("run/.lock")));
    EXPECT_EQ(said.find("keeps a second job"), said.rfind("keeps a second job")) << "once";
    EXPECT_FALSE(bucket.keys().contains("run/.lock"));
    EXPECT_TRUE(small.is_in(path_of(1), *storage));
    bucket.set_before({});
  }
}

}  // namespace
}  // namespace ingot::object_store
