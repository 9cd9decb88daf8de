#include "object_store/credentials.h"

#include <map>

#include "object_store/test_support.h"

namespace ingot::object_store {
namespace {

using base::ConfigError;

struct Account : ::testing::Test {
  TemporaryFolder home;
  std::map<std::string, std::string> variables{{"HOME", home.path()}, {"AWS_EC2_METADATA_DISABLED", "true"}};

  AccountSettings load() const {
    return load_account([this](const char* name) -> const char* {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  }
};

TEST_F(Account, the_environment_alone_is_enough) {
  variables.insert({{"AWS_ACCESS_KEY_ID", "id"},
                    {"AWS_SECRET_ACCESS_KEY", "secret"},
                    {"AWS_SESSION_TOKEN", "token"},
                    {"AWS_REGION", "eu-west-1"},
                    {"AWS_DEFAULT_REGION", "us-east-1"},
                    {"AWS_ENDPOINT_URL", "http://all"},
                    {"AWS_ENDPOINT_URL_S3", "http://s3"},
                    {"AWS_CA_BUNDLE", "/ca.pem"}});
  variables.erase("HOME");
  const auto found = load();
  EXPECT_EQ(found.credentials.access_key_id, "id");
  EXPECT_EQ(found.credentials.secret_access_key, "secret");
  EXPECT_EQ(found.credentials.session_token, "token");
  EXPECT_EQ(found.region, "eu-west-1");
  EXPECT_EQ(found.endpoint_url, "http://s3");
  EXPECT_EQ(found.ca_bundle, "/ca.pem");
}

TEST_F(Account, profiles_come_from_both_files) {
  home.write(".aws/credentials",
             "[default]\naws_access_key_id = d\naws_secret_access_key = ds\n\n[work]\r\n  \naws_access_key_id=w\r\nAWS_SECRET_ACCESS_KEY = "
             "w/s+=\r\naws_session_token = t\r\n");
  home.write(
      ".aws/config",
      "# comment\n[default]\nregion = us-west-2\n[profile work]\nregion = eu-central-1\nservices = local\ns3 =\n  max = 3\n; comment\n"
      "[services local]\ns3 =\n  endpoint_url = http://127.0.0.1:9000\nec2 =\n  endpoint_url = http://wrong\n");
  EXPECT_EQ(load().credentials.access_key_id, "d");
  EXPECT_EQ(load().region, "us-west-2");
  EXPECT_EQ(load().endpoint_url, "");
  variables["AWS_PROFILE"] = "work";
  const auto work = load();
  EXPECT_EQ(work.credentials.access_key_id, "w");
  EXPECT_EQ(work.credentials.secret_access_key, "w/s+=");
  EXPECT_EQ(work.credentials.session_token, "t");
  EXPECT_EQ(work.region, "eu-central-1");
  EXPECT_EQ(work.endpoint_url, "http://127.0.0.1:9000");
  variables.insert({{"AWS_ACCESS_KEY_ID", "e"}, {"AWS_SECRET_ACCESS_KEY", "es"}, {"AWS_REGION", "r"}});
  EXPECT_EQ(load().credentials.access_key_id, "e") << "the environment wins";
  EXPECT_EQ(load().credentials.session_token, "") << "keys and token are of one place";
  EXPECT_EQ(load().region, "r");
}

TEST_F(Account, keys_may_stand_in_the_config_file_and_files_elsewhere) {
  variables["AWS_CONFIG_FILE"] =
      home.write("my_config", "[profile default]\naws_access_key_id = c\naws_secret_access_key = cs\nendpoint_url = http://x\n");
  variables["AWS_SHARED_CREDENTIALS_FILE"] = home.path() + "/none";
  EXPECT_EQ(load().credentials.access_key_id, "c");
  EXPECT_EQ(load().endpoint_url, "http://x");
}

TEST_F(Account, without_keys_it_says_everything_that_was_looked_for) {
  expect_error<ConfigError>([&] { load(); }, {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "[default]", home.path() + "/.aws/credentials",
                                              "/.aws/config", "does not exist"});
  home.write(".aws/credentials", "[other]\naws_access_key_id = o\n");
  expect_error<ConfigError>([&] { load(); }, {"which exists"});
  variables.erase("HOME");
  expect_error<ConfigError>([&] { load(); }, {"HOME is not set"});
}

TEST_F(Account, half_a_pair_of_keys_is_named) {
  variables["AWS_ACCESS_KEY_ID"] = "id";
  expect_error<ConfigError>([&] { load(); }, {"the environment", "access key id but not the secret access key"});
  variables.erase("AWS_ACCESS_KEY_ID");
  home.write(".aws/credentials", "[default]\naws_secret_access_key = hidden\n");
  expect_error<ConfigError>([&] { load(); }, {"[default]", "secret access key but not the access key id"});
}

TEST_F(Account, unknown_profiles_name_the_nearest) {
  variables["AWS_PROFILE"] = "wrk";
  home.write(".aws/credentials", "[work]\naws_access_key_id = w\naws_secret_access_key = ws\n");
  expect_error<ConfigError>([&] { load(); }, {"AWS_PROFILE", "'wrk'", "did you mean 'work'?"});
}

TEST_F(Account, other_ways_to_get_keys_are_refused_with_a_way_out) {
  for (const char* way : {"credential_process = rm -rf /", "role_arn = arn:aws:iam::1:role/x", "sso_session = s"}) {
    home.write(".aws/config", std::string("[default]\n") + way + "\n");
    expect_error<ConfigError>([&] { load(); }, {"export-credentials", "'default'"});
  }
}

TEST_F(Account, line_breaks_in_keys_are_refused_and_not_shown) {
  variables.insert({{"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "top\r\nX-Evil: 1"}});
  try {
    load();
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("secret access key"));
    EXPECT_THAT(error.what(), ::testing::Not(::testing::HasSubstr("Evil")));
  }
}

TEST_F(Account, broken_files_name_file_and_line_but_not_their_content) {
  for (const char* content : {"[default]\nhunter2\n", "hunter2 = 1\n", "[hunter2\n"}) {
    home.write(".aws/credentials", content);
    try {
      load();
      FAIL() << content;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(home.path() + "/.aws/credentials"));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("line "));
      EXPECT_THAT(error.what(), ::testing::Not(::testing::HasSubstr("hunter2")));
    }
  }
  home.write(".aws/credentials", std::string(2 << 20, '#'));
  expect_error<ConfigError>([&] { load(); }, {"cannot be read"});
  variables["AWS_SHARED_CREDENTIALS_FILE"] = home.path();
  expect_error<ConfigError>([&] { load(); }, {"is not a file"});
  variables["AWS_SHARED_CREDENTIALS_FILE"] = "/dev/zero";
  expect_error<ConfigError>([&] { load(); }, {"is not a file"});
}

TEST(Sections, damaged_files_are_read_or_refused) {
  const std::string valid =
      "\xEF\xBB\xBF[default]\naws_access_key_id = AKID\naws_secret_access_key = abc/def+\n# c\n[profile a b]\nregion = x\ns3 =\n  "
      "endpoint_url = http://h\n\tk=v\n";
  EXPECT_EQ(parse_sections(valid, "f")["profile a b"]["s3.endpoint_url"], "http://h");
  std::mt19937_64 random(1);
  int read = 0;
  for (int i = 0; i < 20000; ++i) {
    try {
      parse_sections(damaged(valid, random), "f");
      ++read;
    } catch (const ConfigError&) {
    }
  }
  EXPECT_GT(read, 1000);
  EXPECT_LT(read, 19000);
}

}  // namespace
}  // namespace ingot::object_store
