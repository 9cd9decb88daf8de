#include "object_store/answers.h"

#include "object_store/advice.h"
#include "object_store/test_support.h"

namespace ingot::object_store {
namespace {

using ::testing::ElementsAre;

const std::string kList =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>"
    "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><NextContinuationToken>to/ken+=</NextContinuationToken>"
    "<Contents><Key>a%2Bb+c%0A</Key><LastModified>2026-11-22T04:49:11.000Z</LastModified><ETag>&quot;e-3&quot;</ETag><Size>12345678901</"
    "Size></Contents>"
    "<Contents><Key>d</Key><Size>0</Size></Contents><CommonPrefixes><Prefix>f%20/</Prefix></CommonPrefixes></ListBucketResult>";
const std::string kError =
    "<Error><Code>NoSuchKey</Code><Message>The &lt;key&gt; does not "
    "exist</Message><Region>eu-west-1</Region><RequestId>1</RequestId></Error>";
const std::string kUploads =
    "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker><NextUploadIdMarker>i</NextUploadIdMarker>"
    "<Upload><Key>a b</Key><UploadId>x&amp;y</UploadId><Initiated>2026-11-22T04:49:11Z</Initiated></Upload></ListMultipartUploadsResult>";
const std::string kDeleted =
    "<DeleteResult><Deleted><Key>a</Key></Deleted><Error><Key>b</Key><Code>InternalError</Code><Message>We "
    "encountered</Message></Error></DeleteResult>";
const std::string kCreated =
    "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>2~id</UploadId></InitiateMultipartUploadResult>";
const std::string kCompleted = "\n \n<CompleteMultipartUploadResult><ETag>\"abc-2\"</ETag></CompleteMultipartUploadResult>";

TEST(Answers, listings_are_read) {
  const auto list = parse_list(kList);
  ASSERT_EQ(list.objects.size(), 2u);
  EXPECT_EQ(list.objects[0].key, "a+b c\n");
  EXPECT_EQ(list.objects[0].size_bytes, 12345678901);
  EXPECT_EQ(list.objects[0].etag, "e-3");
  EXPECT_EQ(list.objects[0].last_modified_s, 1795322951);
  EXPECT_EQ(list.objects[1].last_modified_s, 0);
  EXPECT_THAT(list.folders, ElementsAre("f /"));
  EXPECT_EQ(list.next_token, "to/ken+=");
  EXPECT_TRUE(parse_list("<ListBucketResult/>").objects.empty());
  EXPECT_EQ(parse_list("<ListBucketResult><Contents><Key>a%2Bb+c</Key><Size>1</Size></Contents></ListBucketResult>").objects[0].key,
            "a%2Bb+c")
      << "without EncodingType nothing is decoded";
}

TEST(Answers, the_others_are_read) {
  const auto error = parse_error(kError);
  EXPECT_EQ(error.code, "NoSuchKey");
  EXPECT_EQ(error.message, "The <key> does not exist");
  EXPECT_EQ(error.region, "eu-west-1");
  const auto uploads = parse_uploads(kUploads);
  ASSERT_EQ(uploads.uploads.size(), 1u);
  EXPECT_EQ(uploads.uploads[0].key, "a b");
  EXPECT_EQ(uploads.uploads[0].id, "x&y");
  EXPECT_EQ(uploads.uploads[0].initiated_s, 1795322951);
  EXPECT_EQ(uploads.next_key + uploads.next_id, "ki");
  const auto failures = parse_deleted(kDeleted);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].key + failures[0].code, "bInternalError");
  EXPECT_EQ(parse_upload_id(kCreated), "2~id");
  EXPECT_EQ(parse_completed(kCompleted), "abc-2");
}

TEST(Answers, what_no_store_answers_is_refused) {
  for (const char* wrong :
       {"", "garbage", "<html><body>Bad gateway</body></html>", "<ListBucketResult>", "<ListBucketResult><Contents/></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>99999999999999999999</Size></Contents></ListBucketResult>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><IsTruncated>maybe</IsTruncated></ListBucketResult>"})
    expect_error<BrokenAnswer>([&] { parse_list(wrong); }, {});
  expect_error<BrokenAnswer>(
      [&] { parse_list("<ListBucketResult><Contents><Key>" + std::string(5000, 'a') + "</Key></Contents></ListBucketResult>"); },
      {"too long a <Key>"});
  expect_error<BrokenAnswer>([] { parse_upload_id("<InitiateMultipartUploadResult/>"); }, {"no <UploadId>"});
  expect_error<BrokenAnswer>([] { parse_completed(kError); }, {"<Error>", "CompleteMultipartUploadResult"});
  EXPECT_EQ(parse_error("<html>503</html>").code, "");
  EXPECT_EQ(parse_error("").code, "");
}

TEST(Answers, entities_are_not_expanded_and_depth_and_size_are_harmless) {
  std::string bomb = "<!DOCTYPE Error [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b SYSTEM \"file:///etc/passwd\">";
  for (char c = 'c'; c < 'z'; ++c)
    bomb += std::string("<!ENTITY ") + c + " \"&" + static_cast<char>(c - 1) + ";&" + static_cast<char>(c - 1) + ";\">";
  const auto error = parse_error(bomb + "]><Error><Code>&y;</Code><Message>&b;</Message></Error>");
  EXPECT_EQ(error.code, "&y;");
  EXPECT_EQ(error.message, "&b;");
  std::string deep;
  for (int i = 0; i < 300000; ++i) deep += "<a>";
  EXPECT_EQ(parse_error(deep).code, "");
  for (int i = 0; i < 300000; ++i) deep += "</a>";
  EXPECT_EQ(parse_error(deep).code, "");
}

TEST(Answers, control_characters_of_a_server_do_not_reach_messages) {
  const auto error = parse_error("<Error><Code>A&#27;[31m&#10;</Code><Message>" + std::string(10000, 'x') + "</Message></Error>");
  EXPECT_EQ(error.code, "A [31m ");
  EXPECT_LT(error.message.size(), 400u);
}

TEST(Answers, damaged_ones_are_read_or_refused) {
  std::mt19937_64 random(1);
  int read = 0, refused = 0;
  const auto attempt = [&](const auto& parse, const std::string& valid) {
    for (int i = 0; i < 8000; ++i) {
      try {
        parse(damaged(valid, random));
        ++read;
      } catch (const BrokenAnswer&) {
        ++refused;
      }
    }
  };
  attempt(parse_list, kList);
  attempt(parse_uploads, kUploads);
  attempt(parse_deleted, kDeleted);
  attempt(parse_upload_id, kCreated);
  attempt(parse_completed, kCompleted);
  attempt(parse_error, kError);
  EXPECT_GT(read, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(Answers, requests_escape_what_they_hold) {
  EXPECT_EQ(
      encode_complete({{1, "\"a\"", "s="}, {7, "<b>", ""}}),
      "<CompleteMultipartUpload "
      "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Part><PartNumber>1</PartNumber><ETag>&quot;a&quot;</ETag>"
      "<ChecksumSHA256>s=</ChecksumSHA256></Part><Part><PartNumber>7</PartNumber><ETag>&lt;b&gt;</ETag></Part></CompleteMultipartUpload>");
  EXPECT_THAT(encode_delete({"a&b</Key>", "c\n"}),
              ::testing::HasSubstr("<Key>a&amp;b&lt;/Key&gt;</Key></Object><Object><Key>c&#10;</Key>"));
}

TEST(Answers, times_of_bodies_and_headers_are_read) {
  EXPECT_EQ(parse_time("2026-11-22T04:49:11.000Z"), 1795322951);
  EXPECT_EQ(parse_time("Sun, 22 Nov 2026 04:49:11 GMT"), 1795322951);
  EXPECT_EQ(parse_time("yesterday"), 0);
  EXPECT_EQ(parse_time(""), 0);
}

TEST(Advice, passing_faults_are_told_from_final_ones) {
  for (const int status : {408, 429, 500, 502, 503, 504}) EXPECT_TRUE(is_passing(status, "")) << status;
  for (const int status : {301, 400, 403, 404, 405, 409, 411, 412, 416, 501}) EXPECT_FALSE(is_passing(status, "")) << status;
  for (const char* code : {"SlowDown", "RequestTimeout", "BadDigest", "ConditionalRequestConflict"})
    EXPECT_TRUE(is_passing(400, code)) << code;
  EXPECT_EQ(failure_of(403, "SignatureDoesNotMatch"), Failure::signature_mismatch);
  EXPECT_EQ(failure_of(403, ""), Failure::access_denied);
  EXPECT_EQ(failure_of(404, "NoSuchBucket"), Failure::no_such_bucket);
  EXPECT_EQ(failure_of(400, "Weird"), Failure::refused);
  EXPECT_STREQ(name_of(Failure::cancelled), "cancelled");
  EXPECT_STREQ(name_of(Failure::access_denied), "access_denied");
  EXPECT_STREQ(name_of(Failure::wrong_region), "wrong_region");
}

}  // namespace
}  // namespace ingot::object_store
