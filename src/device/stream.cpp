#include "device/stream.h"

#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <set>
#include <unordered_map>

#include "device/memory.h"
#include "device/state.h"

namespace ingot::device {
namespace {

// A default stream gets on with its work when so many jobs, or bytes that were freed and are not back, have gathered.
constexpr int64_t kMostJobs = 1024, kMostFreedBytes = int64_t{256} << 20;

// The streams of one device.
class Streams {
 public:
  static Streams& of(c10::DeviceIndex index) {
    static auto& all = *new std::array<Streams, kEmulatedDevices>;  // never destroyed, as the memory that jobs refer to
    return all.at(static_cast<size_t>(index));
  }

  int64_t enqueue(c10::StreamId id, std::function<void()> job) {
    const std::lock_guard lock(queue_mutex_);
    if (capture_ && captured_streams_.contains(id)) {
      capture_->jobs.push_back(std::move(job));
      return 0;
    }
    auto& stream = streams_[id];
    stream.jobs.push_back(std::move(job));
    return ++stream.queued;
  }
  int64_t queued(c10::StreamId id) {
    const std::lock_guard lock(queue_mutex_);
    return streams_[id].queued;
  }
  int64_t done(c10::StreamId id) {
    const std::lock_guard lock(queue_mutex_);
    return streams_[id].done;
  }

  // Jobs may ask for others': an event's before its waiter's, so that no job ever asks for itself.
  void run(c10::StreamId id, int64_t jobs) {
    const std::lock_guard running(run_mutex_);
    while (run_one(id, jobs)) {
    }
  }
  bool run_one(c10::StreamId id, int64_t jobs) {
    const std::lock_guard running(run_mutex_);
    std::function<void()> job;
    Stream* stream = nullptr;
    {
      const std::lock_guard lock(queue_mutex_);
      stream = &streams_[id];
      if (stream->done >= jobs || stream->jobs.empty()) return false;
      job = std::move(stream->jobs.front());
      stream->jobs.pop_front();
    }
    const std::shared_ptr<void> counted(nullptr, [&](void*) {
      job = nullptr;  // lets go of what it holds, before it counts as done
      const std::lock_guard lock(queue_mutex_);
      ++stream->done;
    });
    job();
    return true;
  }
  void begin_capture(c10::StreamId id, std::shared_ptr<CapturedWork> work) {
    const std::lock_guard lock(queue_mutex_);
    TORCH_CHECK(!capture_, "an emulated device is given work for two graphs at once");
    capture_ = std::move(work);
    captured_streams_ = {id};
  }
  void end_capture() {
    const std::lock_guard lock(queue_mutex_);
    capture_.reset();
    captured_streams_.clear();
  }
  std::shared_ptr<CapturedWork> capture_of(c10::StreamId id) {
    const std::lock_guard lock(queue_mutex_);
    return captured_streams_.contains(id) ? capture_ : nullptr;
  }
  // Whether `id` need not wait for `point`: it comes in order, since both are captured.
  bool join(c10::StreamId id, const StreamPoint& point) {
    const std::lock_guard lock(queue_mutex_);
    TORCH_CHECK(!point.captured_in || point.captured_in == capture_.get(),
                "a stream waits for an event of a graph's work, which ended with its capture");
    const bool is_captured = captured_streams_.contains(id);
    TORCH_CHECK(point.captured_in || !is_captured, "work that is captured for a graph waits for an event outside of it");
    if (point.captured_in) captured_streams_.insert(id);
    return point.captured_in;
  }

  std::vector<std::pair<c10::StreamId, int64_t>> unfinished() {
    const std::lock_guard lock(queue_mutex_);
    std::vector<std::pair<c10::StreamId, int64_t>> list;
    for (const auto& [id, stream] : streams_)
      if (stream.done < stream.queued) list.emplace_back(id, stream.queued);
    return list;
  }

 private:
  struct Stream {
    std::deque<std::function<void()>> jobs;
    int64_t queued = 0, done = 0;
  };
  std::mutex queue_mutex_;
  std::recursive_mutex run_mutex_;
  std::unordered_map<c10::StreamId, Stream> streams_;  // elements stay where they are
  std::shared_ptr<CapturedWork> capture_;              // null: nothing is captured
  std::set<c10::StreamId> captured_streams_;
};

void check_not_captured(const StreamPoint& point) {
  TORCH_CHECK(
      !point.captured_in,
      "the host waits for the device while its work is captured for a graph: it reads a tensor, copies one without non_blocking, or "
      "needs a shape that depends on data");
}

}  // namespace

c10::StreamId& current_stream_id(c10::DeviceIndex index) {
  thread_local std::array<c10::StreamId, kDevices> ids{};
  return ids.at(static_cast<size_t>(index));
}

c10::Stream current_stream(at::Device device) { return c10::Stream(c10::Stream::UNSAFE, device, current_stream_id(device.index())); }

c10::Stream new_stream(at::Device device) {
  static std::atomic<c10::StreamId> next = 1;
  return c10::Stream(c10::Stream::UNSAFE, device, next++);
}

void enqueue(const c10::Stream& stream, std::function<void()> job) {
  Streams::of(stream.device_index()).enqueue(stream.id(), std::move(job));
}

StreamPoint end_of(const c10::Stream& stream) {
  auto& streams = Streams::of(stream.device_index());
  return {stream.device_index(), stream.id(), streams.queued(stream.id()), streams.capture_of(stream.id()).get()};
}

void wait_for(const c10::Stream& stream, const StreamPoint& point) {
  if (stream.device_index() == point.device && stream.id() == point.stream) return;
  if (Streams::of(stream.device_index()).join(stream.id(), point)) return;
  enqueue(stream, [point] { run_until(point); });
}

void run_until(const StreamPoint& point) {
  check_not_captured(point);
  Streams::of(point.device).run(point.stream, point.jobs);
}

bool has_reached(const StreamPoint& point) {
  check_not_captured(point);
  auto& streams = Streams::of(point.device);
  streams.run_one(point.stream, point.jobs);
  return streams.done(point.stream) >= point.jobs;
}

void synchronize(at::Device device) {
  auto& streams = Streams::of(device.index());
  check_not_captured(end_of(current_stream(device)));
  for (auto list = streams.unfinished(); !list.empty(); list = streams.unfinished())
    for (const auto& [id, jobs] : list) streams.run(id, jobs);
}

void begin_capture(const c10::Stream& stream, std::shared_ptr<CapturedWork> work) {
  Streams::of(stream.device_index()).begin_capture(stream.id(), std::move(work));
}
void end_capture(at::Device device) { Streams::of(device.index()).end_capture(); }
std::shared_ptr<CapturedWork> capture_of(const c10::Stream& stream) { return Streams::of(stream.device_index()).capture_of(stream.id()); }

bool is_idle(const c10::Stream& stream) {
  auto& streams = Streams::of(stream.device_index());
  return streams.done(stream.id()) == streams.queued(stream.id());
}

void get_on(const c10::Stream& stream) {
  auto& streams = Streams::of(stream.device_index());
  if (stream.id() != 0) return;
  const int64_t queued = streams.queued(0);
  if (queued - streams.done(0) > kMostJobs || state_of(stream.device()).freed_bytes > kMostFreedBytes) streams.run(0, queued);
}

void launch(const std::vector<at::Tensor>& tensors, std::function<void(const std::vector<at::Tensor>& views)> kernel) {
  std::vector<at::Tensor> views;
  const at::Device device = std::find_if(tensors.begin(), tensors.end(), [](const at::Tensor& x) { return x.defined(); })->device();
  for (const auto& tensor : tensors) views.push_back(tensor.defined() ? shadow_of(tensor, c10::DispatchKey::CPU) : tensor);
  enqueue(current_stream(device), [views = std::move(views), kernel = std::move(kernel)] {
    const at::AutoDispatchBelowADInplaceOrView below;
    kernel(views);
  });
  get_on(current_stream(device));
}

}  // namespace ingot::device
