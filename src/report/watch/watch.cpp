#include "report/watch/watch.h"

#include <cstdio>

#include "base/error.h"
#include "base/log.h"
#include "report/watch/held_signals.h"
#include "report/watch/server.h"

namespace ingot::report {
void watch(const std::vector<std::filesystem::path>& folders, int port, double timeout_s) {
  const HeldSignals signals;
  const WatchServer server(folders, port, timeout_s);
  if (std::printf("http://127.0.0.1:%d/\n", server.port()) < 0 || std::fflush(stdout) != 0)
    throw base::FileError("cannot write to standard output");
  base::log_info("the page follows its runs until Ctrl-C; from another machine: ssh -L {0}:127.0.0.1:{0} HOST", server.port());
  while (!signals.wait_for_one())
    if (!server.is_running()) throw base::Error("the socket of --watch failed; start it again");
}

}  // namespace ingot::report
