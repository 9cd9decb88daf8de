// Ranks as threads, for tests of what ranks do together.
#pragma once

#include <barrier>
#include <thread>

#include "checkpoint/team.h"
#include "checkpoint/test_support.h"

namespace ingot::checkpoint {

// Texts pass through an array between two rendezvous.
struct Desk {
  explicit Desk(int size) : texts(static_cast<size_t>(size)), sent(static_cast<size_t>(size)), barrier(size) {}
  std::vector<std::string> texts;
  std::vector<std::pair<const std::byte*, std::vector<int64_t>>> sent;
  std::barrier<> barrier;
};

class ThreadTeam : public Team {
 public:
  ThreadTeam(Desk& desk, int rank) : desk_(desk), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(desk_.texts.size()); }
  std::vector<std::string> gather(const std::string& own) const override {
    desk_.texts[static_cast<size_t>(rank_)] = own;
    desk_.barrier.arrive_and_wait();
    const auto all = rank_ == 0 ? desk_.texts : std::vector<std::string>();
    desk_.barrier.arrive_and_wait();
    return all;
  }
  std::string broadcast(const std::string& text) const override {
    if (rank_ == 0) desk_.texts[0] = text;
    desk_.barrier.arrive_and_wait();
    const auto same = desk_.texts[0];
    desk_.barrier.arrive_and_wait();
    return same;
  }
  void all_to_all(const std::byte* send, const std::vector<int64_t>& send_bytes, std::byte* receive,
                  const std::vector<int64_t>& receive_bytes) const override {
    desk_.sent[static_cast<size_t>(rank_)] = {send, send_bytes};
    desk_.barrier.arrive_and_wait();
    for (size_t from = 0; from < desk_.sent.size(); ++from) {
      const auto& [data, bytes] = desk_.sent[from];
      int64_t before = 0;
      for (int to = 0; to < rank_; ++to) before += bytes[static_cast<size_t>(to)];
      EXPECT_EQ(bytes[static_cast<size_t>(rank_)], receive_bytes[from]);
      std::copy_n(data + before, receive_bytes[from], receive);
      receive += receive_bytes[from];
    }
    desk_.barrier.arrive_and_wait();
  }

 private:
  Desk& desk_;
  int rank_;
};

// What each of `size` ranks threw, "" for those that returned.
inline std::vector<std::string> run_team(int size, const std::function<void(const Team&)>& body) {
  Desk desk(size);
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(ThreadTeam(desk, rank));
      } catch (const std::exception& failure) {
        errors[static_cast<size_t>(rank)] = failure.what();
      }
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

}  // namespace ingot::checkpoint
