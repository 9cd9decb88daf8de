#include "http/listen_address.h"

#include "base/error.h"
#include "base/text.h"

namespace ingot::http {

HostPort parse_listen_address(std::string_view address) {
  const auto wrong = [](std::string_view why) { return base::ConfigError("{}; write HOST:PORT as in \"127.0.0.1:9400\"", why); };
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) throw wrong("has no port");
  HostPort result{std::string(address.substr(0, colon)), 0};
  const auto digits = address.substr(colon + 1);
  if (digits.empty() || digits.size() > 5 || digits.find_first_not_of("0123456789") != std::string_view::npos)
    throw wrong("has no number as its port");
  result.port = static_cast<int>(*base::parse_integer(digits));
  if (result.port > 65535) throw wrong("has a port above 65535");
  if (result.host.size() >= 2 && result.host.front() == '[' && result.host.back() == ']')
    result.host = result.host.substr(1, result.host.size() - 2);
  else if (result.host.find(':') != std::string::npos) throw wrong("has an IPv6 address without brackets");
  if (result.host.empty()) result.host = "0.0.0.0";
  return result;
}

}  // namespace ingot::http
