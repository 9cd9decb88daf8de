// What needs no server; the rest is tested against servers by tests/python/object_store_test.py.
#include "object_store/multipart.h"
#include "object_store/test_server.h"
#include "object_store/test_support.h"

namespace ingot::object_store {
namespace {

TEST(Multipart, parts_are_as_preferred_until_there_would_be_too_many) {
  constexpr int64_t kMib = 1 << 20;
  EXPECT_EQ(part_bytes_for(0), 16 * kMib);
  EXPECT_EQ(part_bytes_for(16 * kMib * 10000), 16 * kMib);
  EXPECT_EQ(part_bytes_for(16 * kMib * 10000 + 1), 32 * kMib);
  EXPECT_EQ(part_bytes_for(100, 1), kSmallestPartBytes);
  const int64_t largest = int64_t{5} << 40;  // of an object
  EXPECT_LE((largest + part_bytes_for(largest) - 1) / part_bytes_for(largest), kMostParts);
  EXPECT_LE(part_bytes_for(largest), kLargestPartBytes);
}

TEST(Client, impossible_options_are_refused_before_any_connection) {
  ClientOptions options;
  options.bucket = "bucket";
  options.account.endpoint_url = "http://127.0.0.1:1";
  expect_error<base::ConfigError>([&] { Client client(options); }, {"no keys", "bucket"});
  options.account.credentials = {"id", "secret", "", ""};
  const Client client(options);
  expect_error<ObjectStoreError>([&] { client.put("", {}); }, {"1 to 1024 bytes"});
  expect_error<ObjectStoreError>([&] { client.find(std::string(1025, 'k')); }, {"1025"});
  expect_error<ObjectStoreError>([&] { client.remove_prefix(""); }, {"all of bucket 'bucket'"});
  EXPECT_EQ(client.counters().requests, 0);
}

TEST(Client, nobody_there_is_said_within_the_attempts) {
  ClientOptions options;
  options.bucket = "bucket";
  options.account = {{"id", "secret", "", ""}, "", "http://127.0.0.1:1", ""};
  options.attempts = 3;
  options.first_pause_s = 0.001;
  const Client client(options);
  try {
    client.head("key");
    FAIL();
  } catch (const ObjectStoreError& error) {
    EXPECT_EQ(error.failure(), Failure::unavailable);
    for (const char* word : {"s3://bucket/key", "http://127.0.0.1:1", "3 attempts", "refused"})
      EXPECT_THAT(error.what(), ::testing::HasSubstr(word));
  }
  EXPECT_EQ(client.counters().requests, 3);
  EXPECT_EQ(client.counters().retries, 2);
}

TEST(Client, conditional_puts_recognise_themselves_after_a_lost_answer) {
  TestBucket bucket;
  const Client client(bucket.options());
  for (const bool replaces : {false, true}) {
    const auto before = replaces ? client.head("k").etag : "";
    std::atomic<int> lost = 0;
    bucket.set_before([&](const Asked& asked) -> std::optional<Answer> {
      if (asked.method != "PUT" || lost++ > 0) return {};
      bucket.put("k", asked.body, asked.header("x-amz-meta-ingot-mark"));
      return Answer{.closes = true};
    });
    const auto etag = client.put("k", bytes_of("own"), {.only_if_absent = !replaces, .only_if_etag = before});
    bucket.set_before({});
    EXPECT_EQ(etag, client.head("k").etag);
  }
  expect_error<ObjectStoreError>([&] { client.put("k", bytes_of("x"), {.only_if_etag = "another"}); }, {"412", "replaced"});
  expect_error<ObjectStoreError>([&] { client.put("none", bytes_of("x"), {.only_if_etag = "another"}); }, {"404"});
  EXPECT_EQ(client.get("k"), "own");
}

}  // namespace
}  // namespace ingot::object_store
