#include "resilience/seats.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/shared_pages.h"
#include "base/text.h"

namespace ingot::resilience {

// One side writes a text and then counts, the other one reads it after it has seen the count.
struct alignas(4096) SeatPage {
  std::atomic<int64_t> waits, given;  // how often its process has begun to wait, and how often it was told
  char why[1900];
  char variables[2000];
};
static_assert(sizeof(SeatPage) == 4096);

namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(2);
constexpr std::string_view kSpare = ":spare";
constexpr int64_t kMostSeats = int64_t{1} << 20;

template <size_t kSize>
void write(char (&place)[kSize], std::string_view text) {
  const size_t count = std::min(text.size(), kSize - 1);
  std::memcpy(place, text.data(), count);
  place[count] = 0;
}

template <size_t kSize>
std::string read(const char (&place)[kSize]) {
  return {place, strnlen(place, kSize)};
}

}  // namespace

SeatBoard::SeatBoard(int seats) : seats_(seats) {
  const auto shared = base::make_shared_pages("ingot seats", static_cast<size_t>(seats) * sizeof(SeatPage));
  descriptor_ = shared.descriptor;
  pages_ = static_cast<SeatPage*>(shared.memory);
}

SeatBoard::~SeatBoard() {
  munmap(pages_, static_cast<size_t>(seats_) * sizeof(SeatPage));
  close(descriptor_);
}

std::string SeatBoard::name(int seat, bool is_spare) const {
  return fmt::format("{}:{}{}", base::path_of(descriptor_), seat, is_spare ? kSpare : "");
}

bool SeatBoard::is_waiting(int seat) const { return pages_[seat].waits.load(std::memory_order_acquire) > pages_[seat].given; }

std::string SeatBoard::why(int seat) const { return is_waiting(seat) ? read(pages_[seat].why) : ""; }

void SeatBoard::give(int seat, const std::vector<std::pair<std::string, std::string>>& variables) {
  std::string text;
  for (const auto& [name, value] : variables) text += fmt::format("{}={}\n", name, value);
  auto& page = pages_[seat];
  if (text.size() >= sizeof page.variables) throw base::Error("the environment of a rank is longer than a seat can hold");
  write(page.variables, text);
  page.given.store(page.waits.load(), std::memory_order_release);
}

void SeatBoard::clear(int seat) {
  pages_[seat].waits = 0;
  pages_[seat].given = 0;
}

std::optional<Seat> Seat::of(const base::Environment& environment) {
  auto name = std::string_view(environment.seat);
  if (name.empty()) return std::nullopt;
  const bool is_spare = name.ends_with(kSpare);
  if (is_spare) name.remove_suffix(kSpare.size());
  const auto colon = name.rfind(':');
  const auto number = colon == std::string_view::npos ? std::nullopt : base::parse_integer(name.substr(colon + 1));
  const bool is_number = number && *number >= 0 && *number < kMostSeats;
  const auto bytes = is_number ? (static_cast<size_t>(*number) + 1) * sizeof(SeatPage) : 0;
  void* const mapped = is_number ? base::map_shared_pages(std::string(name.substr(0, colon)), bytes) : nullptr;
  if (!mapped) {
    if (is_spare)
      throw base::ConfigError("INGOT_SEAT = {} is no seat of a launcher, and this process was started to wait there", environment.seat);
    base::log_warning("INGOT_SEAT = {} is no seat of a launcher: this process ends when it loses a rank, instead of staying",
                      environment.seat);
    return std::nullopt;
  }
  return Seat(mapped, bytes, static_cast<SeatPage*>(mapped) + *number, is_spare);
}

Seat::Seat(Seat&& other) noexcept
    : mapped_(std::exchange(other.mapped_, nullptr)), bytes_(other.bytes_), page_(other.page_), is_spare_(other.is_spare_) {}

Seat::~Seat() {
  if (mapped_) munmap(mapped_, bytes_);
}

std::optional<base::Environment> Seat::wait(const base::Environment& own, std::string_view why, const std::function<bool()>& is_stopped) {
  write(page_->why, why);
  const int64_t wait = page_->waits.fetch_add(1, std::memory_order_release) + 1;
  while (page_->given.load(std::memory_order_acquire) < wait) {
    if (is_stopped()) {
      page_->waits.fetch_sub(1, std::memory_order_release);  // nobody is to count on it
      return std::nullopt;
    }
    std::this_thread::sleep_for(kLookEvery);
  }
  std::map<std::string, std::string> variables;
  std::istringstream lines(read(page_->variables));
  for (std::string line; std::getline(lines, line);)
    if (const auto equals = line.find('='); equals != std::string::npos) variables[line.substr(0, equals)] = line.substr(equals + 1);
  const auto told = base::read_environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
  auto next = own;
  next.rank = told.rank, next.world_size = told.world_size, next.local_rank = told.local_rank, next.local_size = told.local_size;
  next.master_address = told.master_address, next.master_port = told.master_port, next.agent_store = told.agent_store;
  next.restart_count = told.restart_count, next.heartbeats = told.heartbeats;
  return next;
}

}  // namespace ingot::resilience
