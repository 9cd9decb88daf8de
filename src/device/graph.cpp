#include "device/graph.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>

#include "base/error.h"
#include "device/gpu_library.h"
#include "device/state.h"
#include "device/stream.h"
#include "device/virtual_device.h"

namespace ingot::device {

class Graph::Implementation {
 public:
  Implementation() = default;
  virtual ~Implementation() = default;
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;
  virtual void capture(const std::function<void()>& work) = 0;
  virtual void replay() = 0;
  virtual int64_t kept_bytes() const { return 0; }
};

class Graph::OfEmulated : public Implementation {
 public:
  OfEmulated(at::Device device, const OfEmulated* beside) : device_(device), others_bytes_(beside ? beside->all_bytes() : 0) {}
  ~OfEmulated() override {
    state_of(device_).allocated_bytes -= kept_bytes_;
    const c10::Stream users(c10::Stream::DEFAULT, device_);
    // Jobs may hold tensors, whose memory is the work's.
    if (is_idle(users)) work_->jobs.clear();
    else enqueue(users, [work = work_] { work->jobs.clear(); });
  }

  void capture(const std::function<void()>& work) override {
    const PeakSince peak(device_);
    const int64_t before = memory_use(device_).allocated_bytes;
    {
      const c10::StreamGuard guard(new_stream(device_));
      begin_capture(guard.current_stream(), work_);
      const std::shared_ptr<void> captured(nullptr, [this](void*) { end_capture(device_); });
      work();
    }
    // Within a graph memory is used again, and nobody else has it in between.
    kept_bytes_ = std::max<int64_t>(0, peak.bytes() - (memory_use(device_).allocated_bytes - before) - others_bytes_);
    state_of(device_).allocated_bytes += kept_bytes_;
  }
  void replay() override {
    enqueue(current_stream(device_), [work = work_] {
      for (const auto& job : work->jobs) job();
    });
    get_on(current_stream(device_));
  }
  int64_t kept_bytes() const override { return kept_bytes_; }

 private:
  int64_t all_bytes() const { return kept_bytes_ + others_bytes_; }

  at::Device device_;
  int64_t others_bytes_, kept_bytes_ = 0;
  std::shared_ptr<CapturedWork> work_ = std::make_shared<CapturedWork>();
};

// gpu/graph.cpp has the functions.
class Graph::OfGpu : public Implementation {
 public:
  OfGpu(at::Device device, const OfGpu* beside) : device_(device) {
    auto* const make = gpu_function<void*(int, const void*)>("ingot_graph_make");
    if (!make) throw base::ConfigError("graphs of a GPU need libingot_cuda.so: {}", gpu_library().problem);
    graph_ = make(device.index(), beside ? beside->graph_ : nullptr);
  }
  ~OfGpu() override { function("ingot_graph_drop")(graph_); }

  void capture(const std::function<void()>& work) override {
    at::getDeviceAllocator(device_.type())->emptyCache();  // what the same work took as it was done once
    function("ingot_graph_begin")(graph_);
    try {
      work();
    } catch (...) {
      function("ingot_graph_abandon")(graph_);
      throw;
    }
    function("ingot_graph_end")(graph_);
  }
  void replay() override { function("ingot_graph_replay")(graph_); }

 private:
  static void (*function(const char* name))(void*) { return gpu_function<void(void*)>(name); }

  at::Device device_;
  void* graph_ = nullptr;
};

Graph::Graph(at::Device device, const Graph* beside) {
  TORCH_CHECK(device.is_cuda() || is_emulated(device), "there are no graphs of ", device);
  if (device.is_cuda()) of_ = std::make_unique<OfGpu>(device, beside ? static_cast<const OfGpu*>(beside->of_.get()) : nullptr);
  else of_ = std::make_unique<OfEmulated>(device, beside ? static_cast<const OfEmulated*>(beside->of_.get()) : nullptr);
}
Graph::~Graph() = default;

void Graph::capture(const std::function<void()>& work) { of_->capture(work); }
void Graph::replay() { of_->replay(); }
int64_t Graph::kept_bytes() const { return of_->kept_bytes(); }

}  // namespace ingot::device
