#include "comm/store.h"

#include <c10/util/Logging.h>

C10_DECLARE_int(caffe2_log_level);

namespace ingot::comm {

c10::intrusive_ptr<c10d::TCPStore> open_store(const std::string& host, int port, bool is_server, std::chrono::duration<double> timeout) {
  FLAGS_caffe2_log_level = 3;  // fatal only
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

}  // namespace ingot::comm
