#include "comm/roll_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <exception>
#include <thread>

namespace ingot::comm {

namespace {

std::string named(const std::vector<int>& silent) {
  return fmt::format("rank{} {} did not answer", silent.size() > 1 ? "s" : "", fmt::join(silent, ", "));
}

}  // namespace

std::string roll_call(c10d::Store& store, const std::string& key, int rank, const std::vector<int>& members) {
  constexpr auto kPatience = std::chrono::seconds(5);
  const auto key_of = [&](size_t r) { return fmt::format("{}/survivor/{}", key, r); };
  std::vector<int> silent;  // as of the last whole round
  try {
    store.set(key_of(static_cast<size_t>(rank)), std::vector<uint8_t>{1});
    const auto until = std::chrono::steady_clock::now() + kPatience;
    do {
      std::vector<int> absent;
      for (size_t r = 0; r < members.size(); ++r)
        if (!store.check({key_of(r)})) absent.push_back(members[r]);
      silent = absent;
      if (silent.empty()) return "";
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    } while (std::chrono::steady_clock::now() < until);
  } catch (const std::exception& failure) {
    // The rank that holds the store may end its own roll call first, and the store with it.
    if (!silent.empty()) return named(silent);
    const std::string cause = failure.what();
    return fmt::format("the store does not answer: the launcher or the rank that holds it is gone ({})", cause.substr(0, cause.find('\n')));
  }
  return named(silent);
}

}  // namespace ingot::comm
