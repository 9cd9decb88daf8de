// Keys from the services of cloud machines, each played by a server of this process.
#include "object_store/credential_services.h"

#include <ctime>

#include "object_store/test_server.h"
#include "object_store/test_support.h"

namespace ingot::object_store {
namespace {

using base::ConfigError;
using ::testing::HasSubstr;
using ::testing::Not;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string json_keys(const std::string& id, std::time_t expires) {
  return fmt::format(
      R"({{"Code": "Success", "AccessKeyId": "{}", "SecretAccessKey": "secret", "Token": "token/{}+=", "Expiration": "{}"}})", id, id,
      iso_time(expires));
}

std::string xml_keys(const std::string& id, std::time_t expires) {
  return fmt::format(
      "<AssumeRoleWithWebIdentityResponse "
      "xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleWithWebIdentityResult><Credentials>"
      "<AccessKeyId>{}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>token/{}+=</SessionToken><Expiration>{}"
      "</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
      id, id, iso_time(expires));
}

class Services : public ::testing::Test {
 protected:
  TemporaryFolder home;
  std::map<std::string, std::string> variables{{"HOME", home.path()}, {"AWS_EC2_METADATA_DISABLED", "true"}};
  std::mutex mutex;
  std::vector<Asked> asked;
  std::function<Answer(const Asked&)> answer;
  const std::time_t later = std::time(nullptr) + 3600;
  TestServer server{[this](const Asked& one) {
    std::function<Answer(const Asked&)> how;
    {
      const std::lock_guard guard(mutex);
      asked.push_back(one);
      how = answer;
    }
    return how(one);
  }};

  AccountSettings load() const {
    return load_account([this](const char* name) -> const char* {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  }
  void use_web_identity() {
    variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = home.write("token", "header.payload.signature\n");
    variables["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/a b";
    variables["AWS_ENDPOINT_URL_STS"] = server.url();
  }
  void use_instance() {
    variables["AWS_EC2_METADATA_DISABLED"] = "false";
    variables["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = server.url() + "/";
    answer = [this](const Asked& one) { return instance(one); };
  }
  Answer instance(const Asked& one) const {
    if (one.path == "/latest/api/token")
      return one.method == "PUT" && !one.header("x-aws-ec2-metadata-token-ttl-seconds").empty() ? Answer{200, "t0ken=="} : Answer{400, ""};
    if (one.header("x-aws-ec2-metadata-token") != "t0ken==") return {401, ""};
    if (one.path == "/latest/meta-data/iam/security-credentials/") return {200, "a-role\n"};
    return one.path == "/latest/meta-data/iam/security-credentials/a-role" ? Answer{200, json_keys("imds", later)} : Answer{404, ""};
  }
  void expect_keys(const std::string& id) const {
    const auto keys = load().credentials;
    EXPECT_EQ(keys.access_key_id, id);
    EXPECT_EQ(keys.secret_access_key, "secret");
    EXPECT_EQ(keys.session_token, "token/" + id + "+=");
    EXPECT_EQ(keys.expires_s, later);
  }
};

TEST_F(Services, a_web_identity_becomes_a_role) {
  use_web_identity();
  answer = [&](const Asked&) { return Answer{200, xml_keys("irsa", later)}; };
  expect_keys("irsa");
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].method, "POST");
  for (const char* part : {"Action=AssumeRoleWithWebIdentity", "Version=2011-06-15", "RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fa%20b",
                           "WebIdentityToken=header.payload.signature", "RoleSessionName=ingot-"})
    EXPECT_THAT(asked[0].body, HasSubstr(part));
  EXPECT_EQ(asked[0].header("authorization"), "") << "it is not signed";
  home.write("token", "another");
  variables["AWS_ROLE_SESSION_NAME"] = "mine";
  load();
  EXPECT_THAT(asked[1].body, ::testing::AllOf(HasSubstr("WebIdentityToken=another"), HasSubstr("RoleSessionName=mine")));
}

TEST_F(Services, a_profile_may_name_a_web_identity) {
  home.write("token", "of.the.profile");
  home.write(".aws/config", "[default]\nrole_arn = arn:aws:iam::1:role/p\nweb_identity_token_file = " + home.path() + "/token\n");
  variables["AWS_ENDPOINT_URL_STS"] = server.url();
  answer = [&](const Asked&) { return Answer{200, xml_keys("irsa", later)}; };
  expect_keys("irsa");
}

TEST_F(Services, an_instance_gives_the_keys_of_its_role) {
  use_instance();
  expect_keys("imds");
  EXPECT_EQ(asked.size(), 3u);
  variables["AWS_EC2_METADATA_DISABLED"] = "TRUE";
  expect_error<ConfigError>([&] { load(); }, {"no keys", "AWS_WEB_IDENTITY_TOKEN_FILE"});
  EXPECT_EQ(asked.size(), 3u) << "it was not asked";
}

TEST_F(Services, a_container_gives_keys_to_who_is_authorised) {
  answer = [&](const Asked& one) {
    return one.path == "/v1/keys" && one.header("authorization") == "Bearer x" ? Answer{200, json_keys("ecs", later)}
                                                                               : Answer{403, R"({"message": "not for you"})"};
  };
  variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = server.url() + "/v1/keys";
  expect_error<ConfigError>([&] { load(); }, {"container", "HTTP 403", "not for you", "AWS_CONTAINER_AUTHORIZATION_TOKEN"});
  variables["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "Bearer x";
  expect_keys("ecs");
  variables["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "Bearer x\r\nx-evil: 1";
  expect_error<ConfigError>([&] { load(); }, {"line break"});
  variables["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = home.path() + "/none";
  expect_error<ConfigError>([&] { load(); }, {"cannot be read", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"});
  variables["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = home.write("pod-token", "wrong\n");
  expect_error<ConfigError>([&] { load(); }, {"HTTP 403"});
  for (const char* far : {"http://example.com/keys", "http://127.0.0.1.example.com/keys", "http://127.0.0.1@example.com/keys",
                          "ftp://127.0.0.1/", "keys", "http://"}) {
    variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = far;
    expect_error<ConfigError>([&] { load(); }, {"AWS_CONTAINER_CREDENTIALS_FULL_URI"});
  }
  variables["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "@example.com/keys";
  expect_error<ConfigError>([&] { load(); }, {"must begin with a slash"});
}

TEST_F(Services, the_places_are_asked_in_the_order_of_aws) {
  use_instance();
  use_web_identity();
  variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = server.url() + "/container";
  answer = [&](const Asked& one) {
    return one.path == "/container" ? Answer{200, json_keys("ecs", later)}
           : one.path == "/"        ? Answer{200, xml_keys("irsa", later)}
                                    : instance(one);
  };
  variables.insert({{"AWS_ACCESS_KEY_ID", "environment"}, {"AWS_SECRET_ACCESS_KEY", "s"}});
  home.write(".aws/credentials", "[default]\naws_access_key_id = file\naws_secret_access_key = s\n");
  EXPECT_EQ(load().credentials.access_key_id, "environment");
  variables.erase("AWS_ACCESS_KEY_ID");
  variables.erase("AWS_SECRET_ACCESS_KEY");
  EXPECT_EQ(load().credentials.access_key_id, "irsa");
  variables.erase("AWS_WEB_IDENTITY_TOKEN_FILE");
  EXPECT_EQ(load().credentials.access_key_id, "file");
  home.write(".aws/credentials", "");
  EXPECT_EQ(load().credentials.access_key_id, "ecs");
  variables.erase("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  EXPECT_EQ(load().credentials.access_key_id, "imds");
}

TEST_F(Services, errors_say_what_to_do) {
  use_web_identity();
  answer = [](const Asked&) {
    return Answer{403, "<ErrorResponse><Error><Code>AccessDenied</Code><Message>Not authorized</Message></Error></ErrorResponse>"};
  };
  expect_error<ConfigError>([&] { load(); }, {"STS", "HTTP 403", "AccessDenied: Not authorized", "trust policy"});
  EXPECT_EQ(asked.size(), 1u) << "asking again would not help";
  variables.erase("AWS_ROLE_ARN");
  expect_error<ConfigError>([&] { load(); }, {"AWS_ROLE_ARN is not"});
  variables["AWS_ROLE_ARN"] = "a";
  variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = home.write("token", "line\nbreak");
  expect_error<ConfigError>([&] { load(); }, {"holds no token"});
  variables.erase("AWS_WEB_IDENTITY_TOKEN_FILE");
  use_instance();
  answer = [&](const Asked& one) { return one.path == "/latest/api/token" ? Answer{403, ""} : instance(one); };
  expect_error<ConfigError>([&] { load(); }, {"no keys", "HTTP 403", "enabled for this instance"});
  answer = [&](const Asked& one) { return one.path.ends_with("security-credentials/") ? Answer{404, ""} : instance(one); };
  expect_error<ConfigError>([&] { load(); }, {"HTTP 404", "instance profile"});
  answer = [&](const Asked& one) {
    return one.path.ends_with("a-role") ? Answer{200, R"({"Code": "AssumeRoleUnauthorizedAccess", "Message": "no trust"})"} : instance(one);
  };
  expect_error<ConfigError>([&] { load(); }, {"AssumeRoleUnauthorizedAccess: no trust"});
}

// What is over in a moment is asked again.
TEST_F(Services, a_service_that_fails_for_a_moment_is_asked_again) {
  use_instance();
  std::atomic<int> count = 0;
  answer = [&](const Asked& one) {
    if (!one.path.ends_with("a-role") || ++count > 2) return instance(one);
    return count == 1 ? Answer{500, ""} : Answer{.closes = true};
  };
  expect_keys("imds");
  EXPECT_EQ(count, 3);
}

// Packets to a container one hop too far are dropped: the token never comes.
TEST_F(Services, a_service_that_hangs_is_given_up_soon) {
  use_instance();
  std::condition_variable changed;
  bool is_over = false;
  answer = [&](const Asked&) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::seconds(20), [&] { return is_over; });
    return Answer{.closes = true};
  };
  EXPECT_LT(seconds_of([&] {
              expect_error<ConfigError>([&] { load(); }, {"does not answer", "hop limit", "AWS_EC2_METADATA_DISABLED=true"});
            }),
            4);
  const std::lock_guard guard(mutex);
  is_over = true;
  changed.notify_all();
}

TEST_F(Services, garbage_is_refused_and_secrets_are_not_shown) {
  use_instance();
  const auto valid = json_keys("hunter2", later);
  std::mt19937_64 random(1);
  int read = 0;
  for (int i = 0; i < 300; ++i) {
    const auto body = damaged(valid, random);
    answer = [&](const Asked& one) { return one.path.ends_with("a-role") ? Answer{200, body} : instance(one); };
    try {
      const auto keys = load().credentials;
      ++read;
      EXPECT_TRUE(!keys.access_key_id.empty() && !keys.session_token.empty() && keys.expires_s > 0);
    } catch (const ConfigError& refusal) {
      EXPECT_THAT(refusal.what(), Not(HasSubstr("hunter2")));
    }
  }
  EXPECT_GT(read, 5);
  for (const std::string& body :
       {std::string(), std::string("<html>"), std::string("[]"), std::string("{}"), std::string(1 << 20, '['), std::string(70000, ' ')}) {
    answer = [&](const Asked& one) { return one.path.ends_with("a-role") ? Answer{200, body} : instance(one); };
    EXPECT_THROW(load(), ConfigError);
    answer = [&](const Asked&) { return Answer{200, body}; };
    EXPECT_THROW(load(), ConfigError);
  }
  variables["AWS_EC2_METADATA_DISABLED"] = "true";
  use_web_identity();
  const auto xml = xml_keys("hunter2", later);
  for (int i = 0; i < 300; ++i) {
    const auto body = damaged(xml, random);
    answer = [&](const Asked&) { return Answer{200, body}; };
    try {
      load();
    } catch (const ConfigError& refusal) {
      EXPECT_THAT(refusal.what(), Not(HasSubstr("hunter2")));
    }
  }
}

// -- renewal ----------------------------------------------------------------------------------------------------------------------

class Renewal : public ::testing::Test {
 protected:
  TestBucket bucket;
  std::atomic<int> renewals = 0;
  static Credentials keys(int number, double valid_s) {
    return {.access_key_id = fmt::format("id-{}", number),
            .secret_access_key = "s",
            .session_token = fmt::format("token-{}", number),
            .source = "the test",
            .expires_s = std::time(nullptr) + static_cast<int64_t>(valid_s)};
  }
};

TEST_F(Renewal, keys_are_renewed_before_they_expire_by_one_thread_of_many) {
  auto options = bucket.options();
  options.account.credentials = keys(0, 3);
  options.renew_before_s = 2;
  options.renew = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // as a service takes
    return keys(++renewals, 3);
  };
  std::mutex mutex;
  std::map<std::string, int> seen;
  bucket.set_before([&](const Asked& asked) -> std::optional<Answer> {
    const std::lock_guard guard(mutex);
    ++seen[asked.header("x-amz-security-token")];
    return {};
  });
  const Client client(options);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2500);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        while (std::chrono::steady_clock::now() < end) {
          client.put(fmt::format("k{}", t), bytes_of("x"));
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
      });
  }
  bucket.set_before({});
  EXPECT_GE(renewals, 1);
  EXPECT_LE(renewals, 4) << "not by each thread";
  EXPECT_GT(seen["token-0"], 0);
  EXPECT_GT(seen["token-1"], 0);
  EXPECT_EQ(client.counters().retries, 0);
}

TEST_F(Renewal, a_service_that_is_away_costs_nothing_while_the_keys_are_valid) {
  auto options = bucket.options();
  options.account.credentials = keys(0, 100);
  options.renew = [&]() -> Credentials {
    ++renewals;
    throw ConfigError("the service is away");
  };
  const Client client(options);
  for (int i = 0; i < 20; ++i) client.put("k", bytes_of("x"));
  EXPECT_EQ(renewals, 1) << "and is not asked before each request";
}

TEST_F(Renewal, expired_keys_are_renewed_before_the_store_sees_them) {
  auto options = bucket.options();
  options.account.credentials = keys(0, -10);
  options.renew = [&] { return keys(++renewals, 1000); };
  bucket.set_before([](const Asked& asked) -> std::optional<Answer> {
    return asked.header("x-amz-security-token") == "token-0" ? std::optional(Answer{400, "<Error><Code>ExpiredToken</Code></Error>"})
                                                             : std::nullopt;
  });
  const Client client(options);
  client.put("k", bytes_of("x"));
  EXPECT_EQ(client.counters().requests, 1);
  EXPECT_EQ(renewals, 1);
  bucket.set_before({});
}

}  // namespace
}  // namespace ingot::object_store
