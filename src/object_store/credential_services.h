// Keys from the services that cloud machines have for it, over HTTP: a role by the token of a Kubernetes service account (IRSA), the
// endpoint of a container (ECS, EKS Pod Identity), and the metadata of an EC2 instance (IMDSv2; the first version is not asked).
// What they answer is checked before it is used. Every wait has a short deadline. May be called from any thread.
#pragma once

#include <string>

#include "object_store/credentials.h"

namespace ingot::object_store {

struct WebIdentity {
  std::string token_file;  // read each time: Kubernetes replaces it
  std::string role_arn, session_name;
  std::string endpoint_url;  // of STS; "" for AWS's own in the region
  std::string region, ca_bundle;
};
/// AssumeRoleWithWebIdentity. Throws base::ConfigError.
Credentials keys_by_web_identity(const WebIdentity& identity);

struct ContainerEndpoint {
  std::string url;                 // https, or http to this machine or the addresses that ECS and EKS have for it
  std::string authorization;       // header's value; "" without one
  std::string authorization_file;  // its value, read each time; "" without one
  std::string ca_bundle;
};
/// Throws base::ConfigError.
Credentials keys_of_container(const ContainerEndpoint& endpoint);

inline constexpr const char* kInstanceEndpoint = "http://169.254.169.254";
/// Of the role of the instance. Throws base::ConfigError.
Credentials keys_of_instance(const std::string& endpoint_url);

}  // namespace ingot::object_store
