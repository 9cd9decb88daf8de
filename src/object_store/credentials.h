// Who we are to an object store, and where it is: the environment variables, files and services that AWS's own tools ask. May be called
// from any thread.
//
// Precedence, the first that has it: AWS_* variables; a role by a web identity (AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN: IRSA); the
// profile's section of the credentials file; its section of the config file; the container's endpoint
// (AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI); the metadata of the EC2 instance, unless AWS_EC2_METADATA_DISABLED=true.
// Not supported, and said so when a profile asks for it: single sign-on, roles by the keys of another profile, credential_process.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace ingot::object_store {

struct Credentials {
  std::string access_key_id;
  std::string secret_access_key;
  std::string session_token;  // "" without one
  std::string source;         // where they were found, for messages
  int64_t expires_s = 0;      // since 1970; 0: never, or nobody says

  bool operator==(const Credentials&) const = default;
};

struct AccountSettings {
  Credentials credentials;
  std::string region;        // "" when nothing names one
  std::string endpoint_url;  // "" for AWS itself
  std::string ca_bundle;     // AWS_CA_BUNDLE or ca_bundle: certificates to trust instead of the system's; "" for those
};

/// Returns the value of an environment variable, or null.
using Variables = std::function<const char*(const char* name)>;

/// Reads AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3,
/// AWS_ENDPOINT_URL, AWS_CA_BUNDLE, AWS_PROFILE, AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE, HOME and the files; for the services also
/// AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN, AWS_ROLE_SESSION_NAME, AWS_ENDPOINT_URL_STS, AWS_CONTAINER_AUTHORIZATION_TOKEN(_FILE) and
/// AWS_EC2_METADATA_SERVICE_ENDPOINT. Throws base::ConfigError that says everything that was looked for.
AccountSettings load_account(const Variables& variable);

/// Section name -> key -> value. Indented lines below an empty value become "key.subkey".
using Sections = std::map<std::string, std::map<std::string, std::string>>;

/// The INI dialect of AWS's files. `file` is for messages, which never quote a line: it may hold a secret. Throws base::ConfigError.
Sections parse_sections(std::string_view text, const std::string& file);

}  // namespace ingot::object_store
