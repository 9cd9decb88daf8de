// The oracle is botocore: tests/oracles/make_sigv4_fixtures.py recorded what it makes of the same requests.
#include "object_store/signature.h"

#include <map>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "object_store/location.h"
#include "object_store/test_support.h"

namespace ingot::object_store {
namespace {

const nlohmann::json& recorded() {
  static const auto json = nlohmann::json::parse(base::read_file("src/object_store/testdata/signatures.json"));
  return json;
}

std::map<std::string, std::string> signed_headers(const nlohmann::json& record, const std::string& secret) {
  const std::string payload = record["payload"];
  RequestToSign request{record["method"], record["host"], Endpoint{"", "", record["base"]}.path_of(std::string(record["key"])), {}, {}, {}};
  for (const auto& pair : record["query"]) request.query.emplace_back(pair[0], pair[1]);
  for (const auto& pair : record["headers"]) request.headers.emplace_back(pair[0], pair[1]);
  request.payload_sha256 = record["unsigned"] ? kUnsignedPayload : hex(sha256(bytes_of(payload)));
  const Credentials credentials{recorded()["access_key_id"], secret, record["token"], ""};
  const auto headers = sign(request, credentials, record["region"], std::chrono::system_clock::from_time_t(record["epoch"].get<int64_t>()));
  return {headers.begin(), headers.end()};
}

TEST(Signature, is_what_botocore_computes) {
  ASSERT_GE(recorded()["cases"].size(), 30u);
  for (const auto& record : recorded()["cases"]) {
    SCOPED_TRACE(record["name"]);
    const std::string key = record["key"];
    EXPECT_EQ((Endpoint{"", "", record["base"]}.path_of(key)), record["path"]);
    Pairs query;
    for (const auto& pair : record["query"]) query.emplace_back(pair[0], pair[1]);
    EXPECT_EQ(encode_query(query), record["canonical_query"]);
    const auto headers = signed_headers(record, recorded()["secret_access_key"]);
    EXPECT_EQ(headers.at("x-amz-date"), record["date"]);
    EXPECT_EQ(headers.at("x-amz-content-sha256"), record["content_sha256"]);
    EXPECT_EQ(headers.at("authorization"), record["authorization"]);
    EXPECT_EQ(headers.contains("x-amz-security-token"), record["token"] != "");
  }
}

TEST(Signature, depends_on_the_secret) {
  const auto& record = recorded()["cases"][0];
  EXPECT_NE(signed_headers(record, "another").at("authorization"), record["authorization"]);
}

// RFC 4231 case 2, FIPS 180-2 "abc", RFC 1321.
TEST(Encoding, digests_are_those_of_the_standards) {
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(sha256(bytes_of("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(md5(bytes_of("message digest"))), "f96b697d7cb7938d525a2f31aaf161d0");
  EXPECT_EQ(base64(sha256({})), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("fo"), "Zm8=");
}

TEST(Encoding, percent_decoding_reverses_encoding_and_keeps_what_is_no_escape) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(percent_decode(percent_encode(all, false)), all);
  EXPECT_EQ(percent_decode(percent_encode(all, true)), all);
  EXPECT_EQ(percent_decode("a+b%2B%"), "a b+%");
  EXPECT_EQ(percent_decode("%4"), "%4");
  EXPECT_EQ(percent_decode("%zz%41"), "%zzA");
}

TEST(Encoding, counts_are_whole_non_negative_numbers) {
  EXPECT_EQ(parse_count("0"), 0);
  EXPECT_EQ(parse_count("9223372036854775807"), INT64_MAX);
  for (const char* wrong : {"", "-0", "-1", "+1", " 1", "1 ", "1.0", "9223372036854775808", "0x1", "1,2"})
    EXPECT_EQ(parse_count(wrong), -1) << wrong;
}

}  // namespace
}  // namespace ingot::object_store
