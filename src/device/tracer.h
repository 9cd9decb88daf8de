// Writes down what the calling thread, and the backward passes that it starts, do on one virtual device.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>

#include <memory>

#include "device/aten.h"
#include "device/trace.h"

namespace ingot::device {

class TraceWriter;

/// From its construction until finish() or its end; one at a time on a device, used by one thread.
class Tracer {
 public:
  explicit Tracer(at::Device device);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// Whether operations, communication and host accesses are kept from now on; allocations always are.
  void record_operations(bool wanted);
  /// The trace's peak is the one from here on.
  void restart_peak();
  /// Of the next event.
  int64_t position() const;
  Trace finish();

 private:
  at::Device device_;
  c10::DeviceGuard guard_;
  std::shared_ptr<TraceWriter> writer_;
  at::CallbackHandle callback_;
};

/// A collective under way, for the trace of the device that its tensors are on, or of the calling thread's device.
class CommunicationRecord {
 public:
  CommunicationRecord(std::optional<at::Device> device, Trace::Communication communication);
  void waited();

 private:
  std::shared_ptr<TraceWriter> writer_;
  int64_t number_ = -1;
};

}  // namespace ingot::device
