// The page of runs that go on: regenerated when their files have changed, and not more often than a small share of one core allows, which
// the training beside it may need. Nothing is read while nobody asks.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace ingot::report {

/// What a browser gets: a whole page first, then only what stands in its <main>. `tag` is another one when `main` is.
struct Page {
  std::string whole, main, tag;
};

class LivePage {
 public:
  /// Of run directories, or of a sweep's folder. They may come to be later. At most `share` of the time is spent on making pages.
  explicit LivePage(std::vector<std::filesystem::path> folders, double share = 0.05);

  /// Any thread. Throws nothing that files are the cause of: the page says what is wrong.
  std::shared_ptr<const Page> current();

 private:
  using Clock = std::chrono::steady_clock;
  /// Of a file: place, size and time of the last change; zeros without one.
  struct Stamp {
    uint64_t inode = 0;
    int64_t size_bytes = 0, changed_ns = 0;
    bool operator==(const Stamp&) const = default;
  };

  std::vector<Stamp> stamps() const;
  std::shared_ptr<const Page> made() const;

  const std::vector<std::filesystem::path> folders_;
  const double share_;
  std::mutex mutex_;
  std::shared_ptr<const Page> page_;
  std::vector<Stamp> stamps_;  // as they were before the page was made
  Clock::time_point next_;     // before which no other is made
};

}  // namespace ingot::report
