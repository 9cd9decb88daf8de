// Streams of the emulated devices: queues of work that has not been done yet.
//
// Everything is deferred, on the default stream as on every other: an operation's shapes are inferred when it is called (by libtorch's
// Meta kernels, or shape_rules.h), the CPU's kernel runs later. Work of a stream is done in its order, and only when somebody asks for it:
// the host reads a tensor, copies one without non_blocking, or synchronises; or another stream that is asked has to wait for an event
// there. So work that nobody waited for has not been done: whoever reads its result reads what was there before, each time.
//
// Done at once, behind what the current stream has to do: operations whose shape depends on data, that draw random numbers, or that
// libtorch can infer no shape for. A default stream is also worked off when a lot has gathered on it, as a GPU gets on with its work.
//
// Memory that is freed returns when the stream that allocated it, and those named by record_stream, come to that point; then it is filled
// with bytes that are NaN in every floating-point type. Any thread may call; only one at a time does a device's work.
#pragma once

#include <c10/core/Stream.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <vector>

#include "device/aten.h"

namespace ingot::device {

/// Work that is kept, to be done again and again, in place of being done (graph.h), with the memory that was allocated for it.
struct CapturedWork {
  std::vector<std::function<void()>> jobs;    // in the order in which they were given to whatever stream
  std::mutex mutex;                           // of `memory`: any thread may free
  std::vector<std::shared_ptr<void>> memory;  // freed since, and not to be given to others while this lives
};

/// A place in the work of one stream: behind its first `jobs` jobs. What an event stands for.
struct StreamPoint {
  c10::DeviceIndex device = 0;
  c10::StreamId stream = 0;
  int64_t jobs = 0;
  const CapturedWork* captured_in = nullptr;  // it stands for a place there, and nobody outside can wait for it
};

/// Of this thread.
c10::Stream current_stream(at::Device device);
c10::Stream new_stream(at::Device device);

/// Work for a stream of an emulated device, behind all that it has. `job` runs on the thread that asks for it; what it throws, that thread
/// gets.
void enqueue(const c10::Stream& stream, std::function<void()> job);
/// Behind all that the stream has now.
StreamPoint end_of(const c10::Stream& stream);
/// What comes on `stream` from now on comes after `point`. The host does not wait.
void wait_for(const c10::Stream& stream, const StreamPoint& point);
/// The host waits.
void run_until(const StreamPoint& point);
/// Does one job of those before `point`, if there are any: a host that asks again and again gets there. Whether that was all.
bool has_reached(const StreamPoint& point);
/// All streams of a device.
void synchronize(at::Device device);

/// From now on work for `stream`, and for streams that wait for it, goes into `work`. One capture at a time on a device. As on CUDA it is
/// an error, which throws, to wait for such work outside of the capture or on the host, and for the work of others within it.
void begin_capture(const c10::Stream& stream, std::shared_ptr<CapturedWork> work);
void end_capture(at::Device device);
/// Into which a stream's work goes now; null: it is going to be done.
std::shared_ptr<CapturedWork> capture_of(const c10::Stream& stream);

/// Queues a kernel of ingot's own on the current stream of an emulated device, whose memory it sees as the host's: `tensors` in their
/// order, of which some may be undefined.
void launch(const std::vector<at::Tensor>& tensors, std::function<void(const std::vector<at::Tensor>& views)> kernel);

}  // namespace ingot::device
