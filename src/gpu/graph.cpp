// Graphs of CUDA (HIP's under ROCm) by libtorch, for device/graph.cpp.
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

#include <exception>
#include <memory>
#include <optional>

namespace {

// Capture needs a stream that is not the default one. Other threads may go on with their streams meanwhile: a checkpoint's copies, NCCL's
// watchdog.
//
// Graphs beside one another have one stream, too: the allocator gives a block of their pool to no other.
struct Graph {
  Graph(c10::DeviceIndex device, const Graph* beside)
      : stream(beside ? beside->stream : c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device)),
        pool(beside ? beside->pool : at::cuda::graph_pool_handle()) {}

  c10::cuda::CUDAStream stream;
  at::cuda::MempoolId_t pool;
  at::cuda::CUDAGraph graph;
  std::optional<c10::cuda::CUDAStreamGuard> as_current;
};

void follow(const c10::cuda::CUDAStream& stream, const c10::cuda::CUDAStream& other) {
  at::cuda::CUDAEvent event;
  event.record(other);
  event.block(stream);
}

Graph& graph_at(void* graph) { return *static_cast<Graph*>(graph); }

}  // namespace

#define INGOT_EXPORTED extern "C" __attribute__((visibility("default")))

INGOT_EXPORTED void* ingot_graph_make(int device, const void* beside) {
  return new Graph(static_cast<c10::DeviceIndex>(device), static_cast<const Graph*>(beside));
}
INGOT_EXPORTED void ingot_graph_drop(void* graph) { delete static_cast<Graph*>(graph); }
INGOT_EXPORTED void ingot_graph_begin(void* graph) {
  auto& g = graph_at(graph);
  follow(g.stream, c10::cuda::getCurrentCUDAStream(g.stream.device_index()));
  g.as_current.emplace(g.stream);
  g.graph.capture_begin(g.pool, cudaStreamCaptureModeThreadLocal);
}
INGOT_EXPORTED void ingot_graph_end(void* graph) {
  auto& g = graph_at(graph);
  const std::shared_ptr<void> restored(nullptr, [&](void*) { g.as_current.reset(); });
  g.graph.capture_end();
}
/// After an error within; what the driver says of the broken capture is not the reason.
INGOT_EXPORTED void ingot_graph_abandon(void* graph) {
  try {
    ingot_graph_end(graph);
  } catch (const std::exception&) {
  }
}
INGOT_EXPORTED void ingot_graph_replay(void* graph) { graph_at(graph).graph.replay(); }
