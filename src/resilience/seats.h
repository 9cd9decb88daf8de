// Who goes on in a job that has lost ranks. A launcher tells processes that wait which rank they are next: those that have lost a peer need
// not end, and spares wait ready, with the program loaded.
//
// The launcher makes a SeatBoard, a seat for each process that it may start, and hands the seat's name on (INGOT_SEAT). A process waits on
// its seat until the launcher gives it the environment of a rank (comm/rank_environment.h), or ends it.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/environment.h"

namespace ingot::resilience {

struct SeatPage;

class SeatBoard {
 public:
  /// Throws FileError.
  explicit SeatBoard(int seats);
  ~SeatBoard();
  SeatBoard(const SeatBoard&) = delete;

  /// For INGOT_SEAT, of a process of the same user while this one lives.
  std::string name(int seat, bool is_spare) const;
  bool is_waiting(int seat) const;
  /// What the process there said that it lost.
  std::string why(int seat) const;
  /// To the process that waits there: the variables of a rank.
  void give(int seat, const std::vector<std::pair<std::string, std::string>>& variables);
  /// Before another process is started there.
  void clear(int seat);

 private:
  int descriptor_, seats_;
  SeatPage* pages_;
};

class Seat {
 public:
  /// That of this process; nothing where its launcher has none for it, or (with a warning) where it cannot be had.
  static std::optional<Seat> of(const base::Environment& environment);
  ~Seat();
  Seat(Seat&& other) noexcept;
  Seat& operator=(Seat&&) = delete;

  /// Started to wait.
  bool is_spare() const { return is_spare_; }
  /// Waits for the launcher's word, as long as that lives: the environment of the rank that this process is next, over `own`. Nothing when
  /// it is to end. `why` is what it lost.
  std::optional<base::Environment> wait(const base::Environment& own, std::string_view why, const std::function<bool()>& is_stopped);

 private:
  Seat(void* mapped, size_t bytes, SeatPage* page, bool is_spare) : mapped_(mapped), bytes_(bytes), page_(page), is_spare_(is_spare) {}
  void* mapped_;
  size_t bytes_;
  SeatPage* page_;
  bool is_spare_;
};

}  // namespace ingot::resilience
