#include "base/process_stat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace ingot::base {

// proc_pid_stat(5). The second field is the program's name in brackets, which may hold anything.
std::optional<ProcessStat> process_stat(int64_t process) {
  std::string line;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", process)), line, '\0');
  const auto name_ends = line.rfind(')');
  if (name_ends == std::string::npos) return std::nullopt;
  std::istringstream rest(line.substr(name_ends + 1));
  ProcessStat stat;
  std::string skipped;
  double user = 0, system = 0;
  rest >> stat.state;
  for (int field = 4; field < 14; ++field) rest >> skipped;
  rest >> user >> system;
  for (int field = 16; field < 22; ++field) rest >> skipped;
  if (!(rest >> stat.start_ticks)) return std::nullopt;
  stat.cpu_s = (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return stat;
}

}  // namespace ingot::base
