#include "comm/store.h"

#include <c10/util/Logging.h>

#include <csignal>

C10_DECLARE_int(caffe2_log_level);

namespace ingot::comm {

namespace {

// The store and Gloo write to sockets whose other end may have been killed a moment ago: that is an error of the write, and must not end
// this process as well.
void ignore_broken_pipes() {
  struct sigaction present {};
  if (sigaction(SIGPIPE, nullptr, &present) == 0 && present.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

c10::intrusive_ptr<c10d::TCPStore> open_store(const std::string& host, int port, bool is_server, std::chrono::duration<double> timeout) {
  FLAGS_caffe2_log_level = 3;  // fatal only
  ignore_broken_pipes();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

}  // namespace ingot::comm
