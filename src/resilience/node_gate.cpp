#include "resilience/node_gate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/child_process.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/system_call.h"
#include "health/exclusion_list.h"

namespace ingot::resilience {
namespace {

constexpr size_t kLongestAnswer = 1 << 20;  // bytes

std::string text_of(int descriptor) {
  std::string text(kLongestAnswer, '\0');
  const auto read = base::uninterrupted([&] { return pread(descriptor, text.data(), text.size(), 0); });
  text.resize(read > 0 ? static_cast<size_t>(read) : 0);
  return text;
}

// Of a line of the log, "12:34:56 E what", what stands behind time and level.
std::string without_time(const std::string& line) {
  constexpr size_t kTime = 8, kMessage = 11;
  const bool is_of_log = line.size() > kMessage && line[2] == ':' && line[5] == ':' && line[kTime] == ' ' && line[kTime + 2] == ' ';
  return is_of_log ? line.substr(kMessage) : line;
}

}  // namespace

std::string NodeGate::reason_to_stay_away() const {
  // What cannot be written later is said now.
  if (options_.list.has_parent_path()) base::make_directories(options_.list.parent_path());
  if (!options_.list.empty() && health::is_excluded(options_.list, options_.node))
    return fmt::format("{} has {} among the nodes to be without; who mends it takes its line away", options_.list.string(), options_.node);
  return found_by_check();
}

std::string NodeGate::reason_to_go(Cause cause, const std::string& last_line) const {
  if (cause == Cause::unfit) return without_time(last_line);
  return cause == Cause::crash || cause == Cause::hang ? found_by_check() : "";
}

void NodeGate::exclude(const std::string& why) const {
  if (options_.list.empty()) return;
  try {
    health::exclude(options_.list, options_.node, why);
  } catch (const base::Error& failure) {
    base::log_warning("{} is not on the list of nodes to be without: {}", options_.node, failure.what());
  }
}

// In a process of its own: a broken driver may end it, or never answer.
std::string NodeGate::found_by_check() const {
  if (options_.check.empty()) return "";
  const int answer = memfd_create("ingot-fit", MFD_CLOEXEC);
  if (answer < 0) throw base::FileError("no memory for an answer: {}", std::strerror(errno));
  struct Closer {
    int descriptor;
    ~Closer() { close(descriptor); }
  } const closer{answer};
  const auto start = std::chrono::steady_clock::now();
  const pid_t process = base::start_process(options_.check, {}, {.out = answer});
  int status = 0;
  while (waitpid(process, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() - start > std::chrono::duration<double>(options_.limit_s)) {
      kill(-process, SIGKILL);
      base::uninterrupted([&] { return waitpid(process, nullptr, 0); });
      return fmt::format("`{}` has not ended within {:g} s", fmt::join(options_.check, " "), options_.limit_s);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  try {
    const auto reasons = nlohmann::json::parse(text_of(answer)).at("reasons").get<std::vector<std::string>>();
    if (!reasons.empty()) return fmt::format("{}", fmt::join(reasons, "; "));
  } catch (const nlohmann::json::exception&) {  // it came to no answer
  }
  return fmt::format("`{}` {}", fmt::join(options_.check, " "),
                     WIFEXITED(status) ? fmt::format("exited with status {}", WEXITSTATUS(status))
                                       : fmt::format("was ended by signal {}", WTERMSIG(status)));
}

}  // namespace ingot::resilience
