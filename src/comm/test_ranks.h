// For tests: runs a body on several ranks, as threads or as processes of their own, and fails the test with what went wrong.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "comm/world.h"

namespace ingot::comm {

enum class Fabrics { threads, shared_memory, gloo };
std::string name_of(Fabrics fabric);

/// Processes are forked: call it before the test itself computes with several threads.
void run_on(Fabrics fabric, int size, const std::function<void(World&)>& body, WorldOptions options = {});

/// What each rank threw, "" for those that returned; a rank that ended by a signal gives "signal N".
std::vector<std::string> outcomes_on(Fabrics fabric, int size, const std::function<void(World&)>& body, WorldOptions options = {});

/// An EXPECT that works on threads and in other processes.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw std::runtime_error("not as expected: " + fmt::format(format, std::forward<Args>(args)...));
}

/// A TCP port that was free a moment ago.
int free_port();

}  // namespace ingot::comm
