#include "comm/recording_fabric.h"

#include "device/tracer.h"
#include "device/virtual_device.h"

namespace ingot::comm {
namespace {

// The operation waits when its handle is waited for; a blocking one at once.
class RecordedOperation : public Pending {
 public:
  explicit RecordedOperation(device::CommunicationRecord record) : record_(std::move(record)) {}
  void wait() override {
    if (!std::exchange(is_waited_, true)) record_.waited();
  }
  bool is_done() override { return true; }

 private:
  device::CommunicationRecord record_;
  bool is_waited_ = false;
};

// Values of a host tensor, or those that a counting device knows.
std::optional<at::Tensor> values_of(const at::Tensor& tensor) {
  if (!device::is_virtual(tensor.device())) return tensor;
  return device::contents_of(tensor);
}

void write(const at::Tensor& to, const at::Tensor& values) {
  if (device::is_virtual(to.device())) device::declare_contents(to, values);
  else to.view(-1).copy_(values.reshape(-1));
}

class RecordingBackend : public Backend {
 public:
  RecordingBackend(std::string axis, std::vector<int> members, int rank)
      : axis_(std::move(axis)), members_(std::move(members)), rank_(rank), size_(static_cast<int>(members_.size())) {}
  std::string name() const override { return "recording"; }

  Work start(Operation operation, bool blocking) override {
    const auto traffic = traffic_of(operation, rank_, size_);
    std::optional<at::Device> device;
    for (const auto* tensor : {&operation.input, &operation.output})
      if (tensor->defined() && device::is_virtual(tensor->device())) device = tensor->device();
    device::CommunicationRecord record(device, {.kind = std::string(name_of(operation.kind)),
                                                .axis = axis_,
                                                .ranks = size_,
                                                .first_rank = members_.front(),
                                                .stride = size_ > 1 ? members_[1] - members_[0] : 1,
                                                .peer = operation.peer < 0 ? -1 : members_[static_cast<size_t>(operation.peer)],
                                                .element_bytes = operation.kind == Kind::barrier ? 1 : operation.element_bytes(),
                                                .bytes = operation.kind == Kind::barrier ? 0 : operation.bytes(),
                                                .sent_bytes = traffic.sent_bytes,
                                                .received_bytes = traffic.received_bytes,
                                                .is_blocking = blocking});
    answer(operation);
    return Work(std::make_shared<RecordedOperation>(std::move(record)));
  }

 private:
  void answer(const Operation& o) const {
    if (!o.input.defined() || !o.output.defined()) return;  // messages and barriers
    const auto values = values_of(o.input);
    if (!values) return;
    switch (o.kind) {
      case Kind::all_reduce:
      case Kind::reduce:
        if (o.reduction == Reduction::sum) write(o.output, *values * size_);
        break;
      case Kind::reduce_scatter: {
        const auto own = values->reshape({size_, -1})[rank_];
        write(o.output, o.reduction == Reduction::sum ? own * size_ : own);
        break;
      }
      case Kind::all_gather: write(o.output, values->reshape({1, -1}).expand({size_, -1})); break;
      case Kind::all_to_all: {
        int64_t before = 0;
        for (int r = 0; r < rank_; ++r) before += o.input_counts[static_cast<size_t>(r)];
        const int64_t count = o.input_counts[static_cast<size_t>(rank_)];
        for (const int64_t other : o.output_counts)
          if (other != count) return;
        write(o.output, values->reshape(-1).narrow(0, before, count).expand({size_, -1}));
        break;
      }
      default: break;
    }
  }

  std::string axis_;
  std::vector<int> members_;
  int rank_, size_;
};

class RecordingFabric : public Fabric {
 public:
  std::unique_ptr<Backend> connect(const std::string& key, const std::vector<int>& members, int rank) override {
    return std::make_unique<RecordingBackend>(key.substr(0, key.find(':')), members, rank);
  }
  std::string description() const override { return "of which one computes and the others are only counted"; }
};

}  // namespace

std::unique_ptr<World> recorded_world(int rank, int size) {
  if (size == 1) return std::make_unique<World>();
  return std::make_unique<World>(rank, size, std::make_unique<RecordingFabric>());
}

}  // namespace ingot::comm
