#include "comm/monitored_barrier.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <thread>

namespace ingot::comm {

namespace {

constexpr auto kPatience = std::chrono::seconds(5);   // with other members
constexpr auto kDeadline = std::chrono::seconds(10);  // of the store

std::string named(const std::vector<int>& silent) {
  return fmt::format("rank{} {} did not answer", silent.size() > 1 ? "s" : "", fmt::join(silent, ", "));
}

std::string call(c10d::Store& store, const std::string& key, int rank, const std::vector<int>& members) {
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
    // The rank that holds the store may end its own monitored barrier first, and the store with it.
    if (!silent.empty()) return named(silent);
    const std::string cause = failure.what();
    return fmt::format("the store does not answer: the launcher or the rank that holds it is gone ({})", cause.substr(0, cause.find('\n')));
  }
  return named(silent);
}

}  // namespace

std::string monitored_barrier(const c10::intrusive_ptr<c10d::Store>& store, const std::string& key, int rank,
                              const std::vector<int>& members) {
  // Left behind when the store keeps it waiting; what it needs, it owns.
  const auto answer = std::make_shared<std::promise<std::string>>();
  auto answered = answer->get_future();
  std::thread([=] { answer->set_value(call(*store, key, rank, members)); }).detach();
  if (answered.wait_for(kDeadline) == std::future_status::ready) return answered.get();
  return fmt::format("the store does not answer within {} s: the machine that holds it, or the network to it, is gone", kDeadline.count());
}

}  // namespace ingot::comm
