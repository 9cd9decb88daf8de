#include "object_store/location.h"

#include "object_store/test_support.h"

namespace ingot::object_store {
namespace {

using base::ConfigError;

TEST(Location, bucket_and_prefix_are_taken_apart) {
  const auto whole = parse_location("s3://my-bucket");
  EXPECT_EQ(whole.bucket, "my-bucket");
  EXPECT_EQ(whole.prefix, "");
  EXPECT_EQ(whole.key("a"), "a");
  const auto deep = parse_location("s3://my.bucket/runs/one two//");
  EXPECT_EQ(deep.bucket, "my.bucket");
  EXPECT_EQ(deep.prefix, "runs/one two");
  EXPECT_EQ(deep.key("step_00000001/metadata.bin"), "runs/one two/step_00000001/metadata.bin");
  EXPECT_EQ(deep.to_string(), "s3://my.bucket/runs/one two");
  EXPECT_TRUE(is_object_url("s3://x"));
  EXPECT_FALSE(is_object_url("/s3://x"));
}

TEST(Location, wrong_urls_say_what_is_wrong) {
  expect_error<ConfigError>([] { parse_location("http://bucket/a"); }, {"http://bucket/a", "s3://bucket/prefix"});
  for (const char* bucket : {"", "ab", "a/b", "-abc", "abc-", "a..b", "a b c", "abc?x", "abc@host", "a\nbc",
                             "b\xC3\xBC"
                             "cket"})
    expect_error<ConfigError>([&] { parse_location(std::string("s3://") + bucket); }, {"no bucket name"});
  expect_error<ConfigError>([] { parse_location("s3://bucket//a"); }, {"empty part"});
  expect_error<ConfigError>([] { parse_location("s3://bucket/a//b"); }, {"empty part"});
  expect_error<ConfigError>([] { parse_location("s3://bucket/a\nb"); }, {"control character"});
  expect_error<ConfigError>([] { parse_location("s3://bucket/" + std::string(5000, 'x')); }, {"5000 bytes"});
}

std::string url(const std::string& endpoint, const std::string& region, const std::string& bucket, const std::string& key,
                Addressing addressing = Addressing::automatic) {
  const auto at = resolve_endpoint(endpoint, region, bucket, addressing);
  return at.scheme + "://" + at.host + at.path_of(key);
}

TEST(Endpoint, aws_is_addressed_by_host_and_others_by_path) {
  EXPECT_EQ(url("", "eu-west-1", "bucket", "a/b c"), "https://bucket.s3.eu-west-1.amazonaws.com/a/b%20c");
  EXPECT_EQ(url("", "eu-west-1", "bucket", ""), "https://bucket.s3.eu-west-1.amazonaws.com/");
  EXPECT_EQ(url("", "cn-north-1", "bucket", "a"), "https://bucket.s3.cn-north-1.amazonaws.com.cn/a");
  EXPECT_EQ(url("", "eu-west-1", "my.bucket", "a"), "https://s3.eu-west-1.amazonaws.com/my.bucket/a")
      << "no certificate covers my.bucket.s3";
  EXPECT_EQ(url("http://127.0.0.1:9000", "", "bucket", "a"), "http://127.0.0.1:9000/bucket/a");
  EXPECT_EQ(url("http://127.0.0.1:9000/", "", "bucket", ""), "http://127.0.0.1:9000/bucket");
  EXPECT_EQ(url("HTTPS://Store.Example:443/api/", "x", "bucket", "a"), "https://store.example/api/bucket/a");
  EXPECT_EQ(url("http://store:80", "x", "bucket", "a"), "http://store/bucket/a");
  EXPECT_EQ(url("http://[::1]:9000", "x", "bucket", "a"), "http://[::1]:9000/bucket/a");
  EXPECT_EQ(url("http://[::1]", "x", "bucket", "a"), "http://[::1]/bucket/a");
  EXPECT_EQ(url("https://store.example", "x", "bucket", "a", Addressing::virtual_host), "https://bucket.store.example/a");
  EXPECT_EQ(url("", "eu-west-1", "bucket", "a", Addressing::path), "https://s3.eu-west-1.amazonaws.com/bucket/a");
}

TEST(Endpoint, wrong_ones_say_what_is_wrong) {
  expect_error<ConfigError>([] { url("", "", "bucket", "a"); }, {"AWS_REGION", "AWS_ENDPOINT_URL"});
  expect_error<ConfigError>([] { url("", "evil.example/#", "bucket", "a"); }, {"no region"});
  expect_error<ConfigError>([] { url("", "eu:1", "bucket", "a"); }, {"no region"});
  expect_error<ConfigError>([] { url("store.example", "", "bucket", "a"); }, {"store.example", "https://host"});
  expect_error<ConfigError>([] { url("file:///etc/passwd", "", "bucket", "a"); }, {"neither http nor https"});
  for (const char* host : {"", ":80", "a b", "a:0", "a:65536", "a:b", "[::1", "[]", "[::1]x", "a\r\nb", "a\\b"})
    expect_error<ConfigError>([&] { url(std::string("http://") + host, "", "bucket", "a"); }, {"no valid host"});
  for (const char* path : {"/?a=b", "/#x", "/%2e"})
    expect_error<ConfigError>([&] { url(std::string("http://host") + path, "", "bucket", "a"); }, {"more than a plain path"});
}

TEST(Endpoint, a_password_in_it_is_not_repeated) {
  try {
    url("https://user:hunter2@host", "", "bucket", "a");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::Not(::testing::HasSubstr("hunter2")));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("AWS_ACCESS_KEY_ID"));
  }
}

}  // namespace
}  // namespace ingot::object_store
