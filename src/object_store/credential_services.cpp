#include "object_store/credential_services.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <pugixml.hpp>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "object_store/answers.h"
#include "object_store/http.h"

namespace ingot::object_store {
namespace {

using base::ConfigError;
using Clock = std::chrono::steady_clock;

constexpr int64_t kAnswerLimitBytes = int64_t{64} << 10, kTokenFileLimitBytes = int64_t{64} << 10;
constexpr size_t kLongestValue = 16 << 10;
constexpr double kInstanceDeadline_s = 1, kContainerDeadline_s = 2, kStsDeadline_s = 5;
constexpr int kTries = 3;
constexpr std::chrono::milliseconds kPause(100);

bool is_plain(const std::string& value) {
  return std::none_of(value.begin(), value.end(), [](char c) { return c <= 0x20 || c >= 0x7f; });
}

std::string trimmed(std::string text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && blank(text.back())) text.pop_back();
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), blank));
  return text;
}

std::string secret_of_file(const std::string& file, const char* variable) {
  std::string text;
  try {
    text = trimmed(base::read_file(file, kTokenFileLimitBytes));
  } catch (const base::FileError& failure) {
    throw ConfigError("the file that {} names cannot be read: {}", variable, failure.what());
  }
  if (text.empty() || !is_plain(text)) throw ConfigError("{}, which {} names, holds no token", file, variable);
  return text;
}

struct Url {
  std::string scheme, host, base;  // host without its port; base: up to the path
};

Url url_of(const std::string& url, const char* variable) {
  const size_t colon = url.find("://");
  const std::string scheme = url.substr(0, std::min(colon, url.size()));
  const size_t begin = colon + 3, end = colon == std::string::npos ? url.size() : std::min(url.find_first_of("/?#", begin), url.size());
  if ((scheme != "http" && scheme != "https") || !is_plain(url) || end <= begin ||
      url.substr(begin, end - begin).find('@') != std::string::npos)
    throw ConfigError("{} must have the form http(s)://host[:port][/path], not '{}'", variable, printable(url));
  std::string host = url.substr(begin, end - begin);
  if (host.starts_with('[')) host = host.substr(1, std::min(host.find(']'), host.size()) - 1);
  else host = host.substr(0, std::min(host.find(':'), host.size()));
  return {scheme, lower_case(host), url.substr(0, end)};
}

// One service, which is asked again when it fails for a moment; what it is called is for messages.
class Service {
 public:
  Service(std::string name, double deadline_s, bool direct, const std::string& ca_bundle)
      : name_(std::move(name)),
        deadline_s_(deadline_s),
        direct_(direct),
        http_({.connections = 1, .connect_s = deadline_s, .ca_bundle = ca_bundle}) {}

  HttpAnswer ask(const std::string& method, const std::string& url, const Pairs& headers, const std::string& body = "",
                 int tries = kTries) {
    HttpRequest request{.method = method, .url = url, .headers = headers, .body = bytes_of(body)};
    request.body_limit_bytes = kAnswerLimitBytes;
    request.direct = direct_;
    for (int attempt = 1;; ++attempt) {
      request.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(deadline_s_));
      auto answer = http_.perform(request);
      const bool may_pass = (!answer.failure.empty() && !answer.hopeless) || answer.status >= 500 || answer.status == 429;
      if (may_pass && attempt < tries) {
        std::this_thread::sleep_for(kPause * attempt);
        continue;
      }
      if (!answer.failure.empty())
        throw ConfigError("{} at {} does not answer: {}{}", name_, url, answer.failure,
                          answer.timed_out ? fmt::format(" (after {} s)", deadline_s_) : "");
      return answer;
    }
  }
  [[noreturn]] void refuse(const HttpAnswer& answer, const std::string& words, const char* advice) const {
    throw ConfigError("{} answers HTTP {}{}{}; {}", name_, answer.status, words.empty() ? "" : ": ", printable(words), advice);
  }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  double deadline_s_;
  bool direct_;
  Http http_;
};

Credentials checked(Credentials keys, const std::string& expiration, const Service& service) {
  for (const auto* value : {&keys.access_key_id, &keys.secret_access_key, &keys.session_token})
    if (value->empty() || value->size() > kLongestValue || !is_plain(*value))
      throw ConfigError("{} answers no valid keys: is it the service that it should be?", service.name());
  keys.expires_s = parse_time(expiration);
  if (keys.expires_s <= 0) throw ConfigError("{} does not say when its keys expire ('{}')", service.name(), printable(expiration));
  keys.source = service.name();
  return keys;
}

std::string text_in(const nlohmann::json& document, const char* name) {
  const auto found = document.find(name);
  return found != document.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// What containers and instances answer.
Credentials keys_in(const std::string& body, const Service& service) {
  const auto document = nlohmann::json::parse(body, nullptr, false);
  if (!document.is_object()) throw ConfigError("{} answers no JSON: is it the service that it should be?", service.name());
  if (const auto code = text_in(document, "Code"); !code.empty() && code != "Success")
    throw ConfigError("{} answers {}: {}", service.name(), printable(code), printable(text_in(document, "Message")));
  return checked({.access_key_id = text_in(document, "AccessKeyId"),
                  .secret_access_key = text_in(document, "SecretAccessKey"),
                  .session_token = text_in(document, "Token"),
                  .source = {},
                  .expires_s = 0},
                 text_in(document, "Expiration"), service);
}

}  // namespace

Credentials keys_by_web_identity(const WebIdentity& identity) {
  constexpr const char* kEndpointName = "AWS_ENDPOINT_URL_STS";
  const auto token = secret_of_file(identity.token_file, "AWS_WEB_IDENTITY_TOKEN_FILE");
  std::string url = identity.endpoint_url;
  if (url.empty()) {
    const std::string domain = identity.region.starts_with("cn-") ? ".amazonaws.com.cn" : ".amazonaws.com";
    url = "https://sts" + (identity.region.empty() ? "" : "." + lower_case(identity.region)) + domain;
  }
  url_of(url, kEndpointName);
  if (!url.ends_with('/')) url += '/';
  const auto session = identity.session_name.empty() ? fmt::format("ingot-{}", ::getpid()) : identity.session_name;
  const auto body = encode_query({{"Action", "AssumeRoleWithWebIdentity"},
                                  {"Version", "2011-06-15"},
                                  {"RoleArn", identity.role_arn},
                                  {"RoleSessionName", session},
                                  {"WebIdentityToken", token}});
  Service service("the security token service (STS)", kStsDeadline_s, false, identity.ca_bundle);
  const auto answer =
      service.ask("POST", url, {{"content-type", "application/x-www-form-urlencoded"}, {"accept", "application/xml"}}, body);
  pugi::xml_document document;
  const bool is_xml =
      static_cast<bool>(document.load_buffer(answer.body.data(), answer.body.size(), pugi::parse_default, pugi::encoding_utf8));
  if (answer.status != 200) {
    const auto error = document.child("ErrorResponse").child("Error");
    service.refuse(answer, is_xml && error ? fmt::format("{}: {}", error.child_value("Code"), error.child_value("Message")) : answer.body,
                   "check AWS_ROLE_ARN, the role's trust policy, and that the token in AWS_WEB_IDENTITY_TOKEN_FILE has not expired");
  }
  const auto keys = document.child("AssumeRoleWithWebIdentityResponse").child("AssumeRoleWithWebIdentityResult").child("Credentials");
  return checked({.access_key_id = keys.child_value("AccessKeyId"),
                  .secret_access_key = keys.child_value("SecretAccessKey"),
                  .session_token = keys.child_value("SessionToken"),
                  .source = {},
                  .expires_s = 0},
                 keys.child_value("Expiration"), service);
}

Credentials keys_of_container(const ContainerEndpoint& endpoint) {
  constexpr const char* kName = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
  const auto url = url_of(endpoint.url, kName);
  const bool is_near = url.host == "localhost" || url.host == "::1" ||
                       (url.host.starts_with("127.") && url.host.find_first_not_of("0123456789.") == std::string::npos) ||
                       url.host == "169.254.170.2" || url.host == "169.254.170.23" || url.host == "fd00:ec2::23";
  if (url.scheme != "https" && !is_near)
    throw ConfigError("{} is {}: keys are asked for over https, or of this machine alone (127.0.0.1, 169.254.170.2, 169.254.170.23)", kName,
                      printable(endpoint.url));
  Pairs headers{{"accept", "application/json"}};
  const auto authorization = endpoint.authorization_file.empty()
                                 ? endpoint.authorization
                                 : secret_of_file(endpoint.authorization_file, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (std::any_of(authorization.begin(), authorization.end(), [](char c) { return c < 0x20 || c >= 0x7f; }))
    throw ConfigError("AWS_CONTAINER_AUTHORIZATION_TOKEN contains a line break or another character that none has");
  if (!authorization.empty()) headers.emplace_back("authorization", authorization);
  Service service("the container's service for keys", kContainerDeadline_s, is_near, endpoint.ca_bundle);
  const auto answer = service.ask("GET", endpoint.url, headers);
  if (answer.status != 200)
    service.refuse(answer, answer.body, "check that the task or pod has a role, and AWS_CONTAINER_AUTHORIZATION_TOKEN(_FILE)");
  return keys_in(answer.body, service);
}

Credentials keys_of_instance(const std::string& endpoint_url) {
  const auto base = url_of(endpoint_url, "AWS_EC2_METADATA_SERVICE_ENDPOINT").base;
  Service service("the metadata service of the EC2 instance", kInstanceDeadline_s, true, "");
  HttpAnswer answer;
  try {
    answer = service.ask("PUT", base + "/latest/api/token", {{"x-aws-ec2-metadata-token-ttl-seconds", "21600"}}, "", 1);
  } catch (const ConfigError& silence) {
    throw ConfigError(
        "{}; outside EC2 set AWS_EC2_METADATA_DISABLED=true, in a container on EC2 raise the instance's hop limit (aws ec2 "
        "modify-instance-metadata-options --http-put-response-hop-limit 2)",
        silence.what());
  }
  if (answer.status != 200)
    service.refuse(answer, answer.body, "it gives no session token: is the metadata service enabled for this instance?");
  const auto token = trimmed(answer.body);
  if (token.empty() || token.size() > kLongestValue || !is_plain(token)) throw ConfigError("{} answers no session token", service.name());
  const Pairs headers{{"x-aws-ec2-metadata-token", token}};
  const auto folder = base + "/latest/meta-data/iam/security-credentials/";
  answer = service.ask("GET", folder, headers);
  if (answer.status != 200) service.refuse(answer, answer.body, "give the instance a role (an instance profile)");
  const auto role = answer.body.substr(0, answer.body.find_first_of("\r\n"));
  if (role.empty() || role.size() > 256 || !is_plain(role))
    throw ConfigError("{} names no role; give the instance one (an instance profile)", service.name());
  answer = service.ask("GET", folder + percent_encode(role, false), headers);
  if (answer.status != 200) service.refuse(answer, answer.body, "check the instance's role");
  return keys_in(answer.body, service);
}

}  // namespace ingot::object_store
