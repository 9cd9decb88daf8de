#include "http/listen_address.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ingot::http {
namespace {

TEST(ListenAddress, is_read_or_refused) {
  EXPECT_EQ(parse_listen_address("[::1]:9400").host, "::1");
  EXPECT_EQ(parse_listen_address(":80").host, "0.0.0.0");
  EXPECT_EQ(parse_listen_address("localhost:65535").port, 65535);
  for (const char* wrong : {"localhost", "localhost:", "localhost:-1", "localhost:99999", "localhost:http", "::1:9400",
                            "127.0.0.1:9400/metrics", "host:000000"})
    EXPECT_THROW(parse_listen_address(wrong), base::ConfigError) << wrong;
}

}  // namespace
}  // namespace ingot::http
