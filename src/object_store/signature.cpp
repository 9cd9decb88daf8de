#include "object_store/signature.h"

#include <ctime>
#include <map>

namespace ingot::object_store {
namespace {

// "20130524T000000Z", in UTC.
std::string time_stamp(std::chrono::system_clock::time_point now) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &parts);
  return text;
}

// Without spaces at the ends, and one for each run of them inside.
std::string squeezed(const std::string& value) {
  std::string out;
  for (const char c : value) {
    const bool space = c == ' ' || c == '\t';
    if (!space) out += c;
    if (space && !out.empty() && out.back() != ' ') out += ' ';
  }
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

}  // namespace

Pairs sign(const RequestToSign& request, const Credentials& credentials, const std::string& region,
           std::chrono::system_clock::time_point now) {
  const std::string time = time_stamp(now), date = time.substr(0, 8);
  Pairs added{{"x-amz-content-sha256", request.payload_sha256}, {"x-amz-date", time}};
  if (!credentials.session_token.empty()) added.emplace_back("x-amz-security-token", credentials.session_token);

  std::map<std::string, std::string> headers{{"host", request.host}};
  for (const Pairs* some : {&request.headers, static_cast<const Pairs*>(&added)})
    for (const auto& [name, value] : *some) headers[name] += (headers[name].empty() ? "" : ",") + squeezed(value);
  std::string header_lines, header_names;
  for (const auto& [name, value] : headers) {
    header_lines += name + ":" + value + "\n";
    header_names += (header_names.empty() ? "" : ";") + name;
  }
  const std::string canonical = request.method + "\n" + request.path + "\n" + encode_query(request.query) + "\n" + header_lines + "\n" +
                                header_names + "\n" + request.payload_sha256;

  const std::string scope = date + "/" + region + "/s3/aws4_request";
  const std::string text = "AWS4-HMAC-SHA256\n" + time + "\n" + scope + "\n" + hex(sha256(bytes_of(canonical)));
  std::string key = hmac_sha256("AWS4" + credentials.secret_access_key, date);
  for (const std::string& part : {region, std::string("s3"), std::string("aws4_request")}) key = hmac_sha256(key, part);
  added.emplace_back("authorization", "AWS4-HMAC-SHA256 Credential=" + credentials.access_key_id + "/" + scope +
                                          ", SignedHeaders=" + header_names + ", Signature=" + hex(hmac_sha256(key, text)));
  return added;
}

}  // namespace ingot::object_store
