// Where a thread's time goes, by kind of work: each moment belongs to the innermost operator or scope that is under way, so that the parts
// add up to the whole. Backward work counts with the kind of its forward work, which it is known by through torch's sequence numbers.
#pragma once

#include <ATen/record_function.h>

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan/work_names.h"

namespace ingot::bench {

using base::WorkKind, base::kWorkKinds, base::all_work_kinds, base::name_of, base::title_of;

enum class WorkPass { rest, forward, backward };  // rest: of a step outside of both
inline constexpr size_t kWorkPasses = 3;

struct WorkTimes {
  struct Operator {
    WorkKind kind = WorkKind::unattributed;
    int64_t calls = 0;
    double self_s = 0;
  };
  std::array<std::array<double, kWorkPasses>, kWorkKinds> seconds{};
  double wall_s = 0;                                               // the sum of all of these
  std::map<std::pair<std::string, WorkKind>, Operator> operators;  // by name and what it counted as

  /// An operator or scope from its begin to its end, in seconds since start(); those within it lie within.
  struct Span {
    std::string name;
    WorkKind kind = WorkKind::unattributed;
    WorkPass pass = WorkPass::rest;
    double begin_s = 0, end_s = 0;
  };
  std::vector<Span> spans;  // in the order of their ends; of a sum those of its last part

  double of(WorkKind kind) const;
  double of(WorkKind kind, WorkPass pass) const { return seconds[static_cast<size_t>(kind)][static_cast<size_t>(pass)]; }
  WorkTimes& operator+=(const WorkTimes& other);
};

/// Watches the thread that starts it, and what torch's engine does for it on other threads. One at a time in a process.
class WorkWatch {
 public:
  /// `synchronise`, if any, waits until the device is done: it is called at the borders of all work, which then no longer overlaps.
  explicit WorkWatch(void (*synchronise)() = nullptr) : synchronise_(synchronise) {}
  ~WorkWatch();
  WorkWatch(const WorkWatch&) = delete;
  WorkWatch& operator=(const WorkWatch&) = delete;

  void start();
  /// What happened since start(). Nothing that began since may still be under way.
  WorkTimes stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Frame {
    const std::string* name = nullptr;
    double begin_s = 0;
    base::Work::Rule rule = base::Work::Rule::passes;
    bool has_kind = false;  // else what is below counts for itself
    WorkKind kind = WorkKind::unattributed;
    WorkPass pass = WorkPass::rest;
    bool is_again = false;
    WorkTimes::Operator* times = nullptr;
  };
  struct Origin {
    base::Work::Rule rule;
    bool has_kind;
    WorkKind kind;
  };

  static std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function);
  static void on_end(const at::RecordFunction& function, at::ObserverContext* context);
  void begin(const at::RecordFunction& function);
  void end();
  void charge();
  double since_start() const;  // of the last border
  void charge_watch(WorkPass pass);
  WorkTimes::Operator* entry_of(const char* name, const Frame& frame);
  Frame frame_of(const at::RecordFunction& function, const Frame& above) const;

  void (*synchronise_)();
  at::CallbackHandle handle_ = 0;
  bool is_on_ = false;
  struct Span {
    const std::string* name;
    WorkKind kind;
    WorkPass pass;
    double begin_s, end_s;
  };
  std::vector<Frame> frames_;
  std::vector<Span> spans_;
  std::unordered_map<int64_t, Origin> origins_;  // by the sequence number of the node that a forward operation makes
  std::unordered_map<std::string, std::array<std::unique_ptr<WorkTimes::Operator>, kWorkKinds>> operators_;
  WorkTimes times_;
  Clock::time_point started_, last_;
};

}  // namespace ingot::bench
