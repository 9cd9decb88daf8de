#include "object_store/credentials.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "object_store/credential_services.h"
#include "object_store/encoding.h"

namespace ingot::object_store {
namespace {

using base::ConfigError;

constexpr const char* kContainerHost = "http://169.254.170.2";
constexpr int64_t kFileLimitBytes = int64_t{1} << 20;

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

Sections read_sections(const std::string& file) {
  std::error_code ignored;
  if (file.empty() || !std::filesystem::exists(file, ignored)) return {};
  if (!std::filesystem::is_regular_file(file, ignored)) throw ConfigError("{} is not a file; AWS profiles are read from there", file);
  try {
    return parse_sections(base::read_file(file, kFileLimitBytes), file);
  } catch (const base::FileError& failure) {
    throw ConfigError("AWS profiles cannot be read: {}", failure.what());
  }
}

// They are put into headers: a line break in one would add a header of its own.
void check_plain(const std::string& value, const char* what, const std::string& source) {
  if (std::any_of(value.begin(), value.end(), [](char c) { return c <= 0x20 || c >= 0x7f; }))
    throw ConfigError("the {} from {} contains a space or another character that none has; it was probably cut or pasted wrongly", what,
                      source);
}

class Finder {
 public:
  explicit Finder(const Variables& variable) : variable_(variable) {
    const std::string folder = get("HOME").empty() ? "" : get("HOME") + "/.aws/";
    credentials_file_ = get("AWS_SHARED_CREDENTIALS_FILE");
    if (credentials_file_.empty() && !folder.empty()) credentials_file_ = folder + "credentials";
    config_file_ = get("AWS_CONFIG_FILE");
    if (config_file_.empty() && !folder.empty()) config_file_ = folder + "config";
    credentials_sections_ = read_sections(credentials_file_);
    config_sections_ = read_sections(config_file_);
    profile_ = get("AWS_PROFILE").empty() ? "default" : get("AWS_PROFILE");
    if (!get("AWS_PROFILE").empty()) check_profile();
  }

  AccountSettings find() const {
    AccountSettings found;
    found.credentials = credentials();
    found.region = first({get("AWS_REGION"), get("AWS_DEFAULT_REGION"), in_profile("region")});
    found.endpoint_url = first({get("AWS_ENDPOINT_URL_S3"), get("AWS_ENDPOINT_URL"), service_endpoint(), in_profile("endpoint_url")});
    found.ca_bundle = first({get("AWS_CA_BUNDLE"), in_profile("ca_bundle")});
    check_plain(found.region, "region", "the environment or " + config_file_);
    return found;
  }

 private:
  std::string get(const char* name) const {
    const char* value = variable_(name);
    return value ? value : "";
  }
  static std::string first(std::initializer_list<std::string> candidates) {
    for (const auto& candidate : candidates)
      if (!candidate.empty()) return candidate;
    return {};
  }
  static std::string value_in(const Sections& sections, const std::string& section, const std::string& key) {
    const auto found = sections.find(section);
    if (found == sections.end()) return {};
    const auto value = found->second.find(key);
    return value == found->second.end() ? "" : value->second;
  }
  std::string config_section() const {
    return profile_ == "default" && !config_sections_.contains("profile default") ? profile_ : "profile " + profile_;
  }
  std::string in_profile(const std::string& key) const {
    return first({value_in(credentials_sections_, profile_, key), value_in(config_sections_, config_section(), key)});
  }
  // "services = NAME" in the profile and "[services NAME]" with "s3 =" and an indented "endpoint_url = URL".
  std::string service_endpoint() const {
    const std::string services = value_in(config_sections_, config_section(), "services");
    return services.empty() ? "" : value_in(config_sections_, "services " + services, "s3.endpoint_url");
  }
  void check_profile() const {
    std::vector<std::string> known;
    for (const auto& [name, unused] : credentials_sections_) known.push_back(name);
    for (const auto& [name, unused] : config_sections_) {
      if (name == "default") known.push_back(name);
      if (name.starts_with("profile ")) known.push_back(name.substr(8));
    }
    if (std::find(known.begin(), known.end(), profile_) != known.end()) return;
    throw ConfigError("AWS_PROFILE is '{}', but neither {} nor {} has that profile{}", printable(profile_), credentials_file_, config_file_,
                      base::did_you_mean(profile_, known));
  }

  Credentials complete(const std::string& id, const std::string& secret, const std::string& token, const std::string& source) const {
    if (id.empty() != secret.empty())
      throw ConfigError("{} has {} but not {}; set both", source, id.empty() ? "the secret access key" : "the access key id",
                        id.empty() ? "the access key id" : "the secret access key");
    check_plain(id, "access key id", source);
    check_plain(secret, "secret access key", source);
    check_plain(token, "session token", source);
    return {.access_key_id = id, .secret_access_key = secret, .session_token = token, .source = source};
  }

  Credentials credentials() const {
    auto found = complete(get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY"), get("AWS_SESSION_TOKEN"),
                          "the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)");
    if (!found.access_key_id.empty()) return found;
    if (auto keys = by_web_identity(get("AWS_WEB_IDENTITY_TOKEN_FILE"), get("AWS_ROLE_ARN"), get("AWS_ROLE_SESSION_NAME"))) return *keys;
    const std::pair<const Sections&, std::pair<std::string, std::string>> places[] = {
        {credentials_sections_, {profile_, credentials_file_}}, {config_sections_, {config_section(), config_file_}}};
    for (const auto& [sections, place] : places) {
      const auto& [section, file] = place;
      found = complete(value_in(sections, section, "aws_access_key_id"), value_in(sections, section, "aws_secret_access_key"),
                       value_in(sections, section, "aws_session_token"), "[" + section + "] of " + file);
      if (!found.access_key_id.empty()) return found;
    }
    if (!in_profile("role_arn").empty() && !in_profile("web_identity_token_file").empty())
      return *by_web_identity(in_profile("web_identity_token_file"), in_profile("role_arn"), in_profile("role_session_name"));
    for (const char* other : {"credential_process", "sso_session", "sso_start_url", "role_arn", "web_identity_token_file"})
      if (!in_profile(other).empty())
        throw ConfigError(
            "the AWS profile '{}' gets its keys by {}, which ingot cannot do; run `eval \"$(aws configure export-credentials --profile {} "
            "--format env)\"` before it",
            printable(profile_), other, printable(profile_));
    if (auto keys = of_container()) return *keys;
    return of_instance();
  }

  // Nothing when neither is named.
  std::optional<Credentials> by_web_identity(const std::string& token_file, const std::string& role_arn, const std::string& session) const {
    if (token_file.empty()) return std::nullopt;
    if (role_arn.empty()) throw ConfigError("AWS_WEB_IDENTITY_TOKEN_FILE is set, but AWS_ROLE_ARN is not; set both");
    return keys_by_web_identity({.token_file = token_file,
                                 .role_arn = role_arn,
                                 .session_name = session,
                                 .endpoint_url = get("AWS_ENDPOINT_URL_STS"),
                                 .region = first({get("AWS_REGION"), get("AWS_DEFAULT_REGION"), in_profile("region")}),
                                 .ca_bundle = first({get("AWS_CA_BUNDLE"), in_profile("ca_bundle")})});
  }
  std::optional<Credentials> of_container() const {
    const auto relative = get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"), full = get("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    if (relative.empty() && full.empty()) return std::nullopt;
    if (!relative.empty() && relative[0] != '/') throw ConfigError("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI must begin with a slash");
    return keys_of_container({.url = relative.empty() ? full : kContainerHost + relative,
                              .authorization = get("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
                              .authorization_file = get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
                              .ca_bundle = get("AWS_CA_BUNDLE")});
  }
  // The last that is asked: whatever it says, the places before it had none.
  Credentials of_instance() const {
    const auto looked = fmt::format(
        "no keys for the object store: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set, and neither [{}] of {} ({}) nor [{}] of {} "
        "({}) has aws_access_key_id and aws_secret_access_key, nor are AWS_WEB_IDENTITY_TOKEN_FILE or AWS_CONTAINER_CREDENTIALS_…_URI set",
        printable(profile_), file_or_unknown(credentials_file_), state_of(credentials_file_), printable(config_section()),
        file_or_unknown(config_file_), state_of(config_file_));
    if (lower_case(get("AWS_EC2_METADATA_DISABLED")) == "true") throw ConfigError("{}; set one of these", looked);
    const auto endpoint = get("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    try {
      return keys_of_instance(endpoint.empty() ? kInstanceEndpoint : endpoint);
    } catch (const ConfigError& failure) {
      throw ConfigError("{}; set one of these. {}", looked, failure.what());
    }
  }
  static std::string file_or_unknown(const std::string& file) { return file.empty() ? "~/.aws (HOME is not set)" : file; }
  static const char* state_of(const std::string& file) {
    std::error_code ignored;
    return !file.empty() && std::filesystem::exists(file, ignored) ? "which exists" : "which does not exist";
  }

  const Variables& variable_;
  std::string credentials_file_, config_file_, profile_;
  Sections credentials_sections_, config_sections_;
};

}  // namespace

Sections parse_sections(std::string_view text, const std::string& file) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  Sections sections;
  std::map<std::string, std::string>* section = nullptr;
  std::string parent;  // the last key, if its value was empty
  int line_number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view whole = text.substr(0, end), line = trim(whole);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    const bool indented = whole[0] == ' ' || whole[0] == '\t';
    if (line[0] == '[' && !indented) {
      const size_t close = line.find(']');
      if (close == std::string_view::npos) throw ConfigError("line {} of {} opens a section but has no ']'", line_number, file);
      section = &sections[std::string(trim(line.substr(1, close - 1)))];
      parent.clear();
      continue;
    }
    const size_t equals = line.find('=');
    if (!section) throw ConfigError("line {} of {} stands before the first [section]", line_number, file);
    if (equals == std::string_view::npos) throw ConfigError("line {} of {} is neither [section] nor key = value", line_number, file);
    const std::string key = lower_case(trim(line.substr(0, equals)));
    const std::string value(trim(line.substr(equals + 1)));
    if (indented && !parent.empty()) {
      (*section)[parent + "." + key] = value;
    } else {
      (*section)[key] = value;
      parent = value.empty() ? key : "";
    }
  }
  return sections;
}

AccountSettings load_account(const Variables& variable) { return Finder(variable).find(); }

}  // namespace ingot::object_store
