#include "comm/roll_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <exception>
#include <thread>

namespace ingot::comm {

std::string roll_call(c10d::Store& store, const std::string& key, int rank, const std::vector<int>& members) {
  constexpr auto kPatience = std::chrono::seconds(5);
  const auto key_of = [&](size_t r) { return fmt::format("{}/survivor/{}", key, r); };
  try {
    store.set(key_of(static_cast<size_t>(rank)), std::vector<uint8_t>{1});
    std::vector<int> silent;
    const auto until = std::chrono::steady_clock::now() + kPatience;
    do {
      silent.clear();
      for (size_t r = 0; r < members.size(); ++r)
        if (!store.check({key_of(r)})) silent.push_back(members[r]);
      if (silent.empty()) return "";
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    } while (std::chrono::steady_clock::now() < until);
    return fmt::format("rank{} {} did not answer", silent.size() > 1 ? "s" : "", fmt::join(silent, ", "));
  } catch (const std::exception&) {
    return "the store does not answer: the launcher or the rank that holds it is gone";
  }
}

}  // namespace ingot::comm
