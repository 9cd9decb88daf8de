// Where a server is asked to listen.
#pragma once

#include <string>
#include <string_view>

namespace ingot::http {

struct HostPort {
  std::string host;
  int port = 0;  // 0: any free one
};

/// "127.0.0.1:9400", "[::1]:9400", "localhost:9400", or ":9400" for every interface. Throws ConfigError that says what is wrong with it,
/// for a sentence that begins with the setting: "has no port; write HOST:PORT as in "127.0.0.1:9400"".
HostPort parse_listen_address(std::string_view address);

}  // namespace ingot::http
