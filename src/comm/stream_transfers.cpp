#include "comm/stream_transfers.h"

#include <cstring>
#include <exception>
#include <vector>

#include "base/error.h"
#include "device/virtual_device.h"

namespace ingot::comm {
namespace {

// The host's side of a device tensor, of which somebody else keeps the memory.
struct Bytes {
  void* at = nullptr;
  size_t count = 0;
};

struct Transfer {
  std::string what;
  Work transport;
  Bytes input, output;
  at::Tensor sent, arrived;  // of the host: the input as it was; the result, undefined where there is none
  bool is_waited = false;
  std::atomic<bool> is_over = false;

  // On the group's stream.
  void finish() {
    transport.wait();
    if (is_waited && sent.defined() && input.count > 0 && std::memcmp(input.at, sent.const_data_ptr(), input.count) != 0)
      throw base::CommError("{}: its input was written to before it was waited for", what);
    if (arrived.defined() && output.count > 0) std::memcpy(output.at, arrived.const_data_ptr(), output.count);
  }
};

// A host's wait makes the current stream wait. The tensors' memory is kept until then.
class Streamed : public Pending {
 public:
  Streamed(std::shared_ptr<Transfer> transfer, const c10::Stream& stream, std::vector<at::Tensor> owners)
      : transfer_(std::move(transfer)), stream_(stream), point_(device::end_of(stream)), owners_(std::move(owners)) {}
  ~Streamed() override {
    if (!owners_.empty() && !transfer_->is_over) device::enqueue(stream_, [owners = std::move(owners_)] {});
  }
  void wait() override {
    transfer_->is_waited = true;
    device::wait_for(device::current_stream(stream_.device()), point_);
    owners_.clear();
  }
  bool is_done() override {
    if (!transfer_->transport.is_done()) return false;
    device::run_until(point_);
    return true;
  }

 private:
  std::shared_ptr<Transfer> transfer_;
  c10::Stream stream_;
  device::StreamPoint point_;
  std::vector<at::Tensor> owners_;
};

}  // namespace

bool StreamTransfers::takes(const Operation& o) {
  for (const auto* tensor : {&o.input, &o.output})
    if (tensor->defined() && device::is_emulated(tensor->device())) return true;
  return false;
}

const c10::Stream& StreamTransfers::stream_of(const Operation& o, at::Device device) {
  const bool is_message = o.kind == Kind::send || o.kind == Kind::receive;
  const std::tuple key(device.index(), is_message ? o.peer : -1, o.kind == Kind::send);
  auto at = streams_.find(key);
  if (at == streams_.end()) at = streams_.emplace(key, device::new_stream(device)).first;
  return at->second;
}

Work StreamTransfers::start(Operation o, int rank, const std::function<Work(Operation)>& transport) {
  const at::Device device = (o.input.defined() ? o.input : o.output).device();
  const auto& stream = stream_of(o, device);
  auto transfer = std::make_shared<Transfer>();
  transfer->what = describe(o);
  std::vector<at::Tensor> owners;
  const auto bytes_of = [&](const at::Tensor& tensor) {
    owners.push_back(tensor);
    const auto view = device::host_view(tensor);  // the current stream has come here
    return std::pair(view, Bytes{view.mutable_data_ptr(), view.nbytes()});
  };
  const bool is_in_place = o.input.defined() && o.input.is_same(o.output);
  const bool has_result =
      o.output.defined() && !((o.kind == Kind::reduce && rank != o.peer) || (o.kind == Kind::broadcast && rank == o.peer));
  at::Tensor output_view;
  if (o.output.defined()) std::tie(output_view, transfer->output) = bytes_of(o.output);
  if (o.input.defined()) {
    at::Tensor view;
    std::tie(view, transfer->input) = bytes_of(o.input);
    transfer->sent = view.clone();
    o.input = transfer->sent;
  }
  if (o.output.defined()) {
    const auto arrived = is_in_place ? transfer->sent.clone() : at::empty_like(output_view);
    o.output = arrived;
    if (is_in_place) o.input = arrived;
    if (has_result) transfer->arrived = arrived;
  }
  transfer->transport = transport(std::move(o));
  device::enqueue(stream, [transfer, is_dropped = is_dropped_] {
    const std::shared_ptr<void> over(nullptr, [&](void*) { transfer->is_over = true; });
    if (!*is_dropped) transfer->finish();
  });
  return Work(std::make_shared<Streamed>(std::move(transfer), stream, std::move(owners)));
}

StreamTransfers::~StreamTransfers() {
  if (std::uncaught_exceptions() > 0) *is_dropped_ = true;
  for (const auto& [key, stream] : streams_) {
    const auto end = device::end_of(stream);
    try {
      device::run_until(end);
    } catch (const std::exception&) {  // what was waited for said so where it was asked for; the rest is dropped
      *is_dropped_ = true;
      device::run_until(end);
    }
  }
}

}  // namespace ingot::comm
