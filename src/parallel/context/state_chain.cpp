// Chains of states. LASP-1: each rank waits for the state, applies its map and sends it on before it works on its tokens. ZeCO (All-Scan,
// arXiv 2507.01004): the same in blocks of columns, which go through all ranks while these work on their tokens. Each rank keeps its own
// transition for backward.
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <future>
#include <optional>

#include "parallel/context/axis.h"

namespace ingot::parallel {
namespace {

using kernels::LinearAttentionMap;

constexpr int64_t kBlocks = 4;  // of columns of a state, that ZeCO passes on one by one

// Work beside that of the current stream: on a CPU a thread does it, elsewhere a stream.
class Beside {
 public:
  Beside(at::Device device, const std::function<at::Tensor()>& work) : device_(device) {
    if (device.is_cpu()) {
      thread_ = std::async(std::launch::async, work);
      return;
    }
    const c10::impl::VirtualGuardImpl guard(device.type());
    const auto side = guard.getStreamFromGlobalPool(device);
    c10::Event begin(device.type());
    begin.record(guard.getStream(device));
    begin.block(side);
    {
      const c10::StreamGuard as_current(side);
      result_ = work();
    }
    end_.emplace(device.type());
    end_->record(side);
  }
  at::Tensor wait() {
    if (!end_) return thread_.get();
    const auto current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
    end_->block(current);
    if (result_.defined()) result_.record_stream(current);
    return result_;
  }

 private:
  at::Device device_;
  std::future<at::Tensor> thread_;
  at::Tensor result_;
  std::optional<c10::Event> end_;
};

// The state (or, `backwards`, its gradient) goes along the ranks in blocks of columns; each applies its own map and passes it on.
// Returns what arrived; undefined on the first rank.
at::Tensor chain(const ContextAxis& axis, const LinearAttentionMap& own, bool backwards, int64_t blocks) {
  const at::NoGradGuard no_grad;
  const int from = backwards ? axis.rank + 1 : axis.rank - 1, to = backwards ? axis.rank - 1 : axis.rank + 1;
  const bool receives = from >= 0 && from < axis.size, sends = to >= 0 && to < axis.size;
  const int64_t columns = own.added.size(3);
  blocks = std::min(blocks, columns);
  std::vector<at::Tensor> arrived, sent;
  std::vector<comm::Work> arrivals, departures;
  const auto begin = [&](int64_t block) { return columns * block / blocks; };
  for (int64_t block = 0; receives && block < blocks; ++block) {
    auto sizes = own.added.sizes().vec();
    sizes[3] = begin(block + 1) - begin(block);
    arrived.push_back(at::empty(sizes, own.added.options()));
    arrivals.push_back(axis.group->start_receive(arrived.back(), from));
  }
  for (int64_t block = 0; block < blocks; ++block) {
    LinearAttentionMap part = own;
    part.added = own.added.narrow(3, begin(block), begin(block + 1) - begin(block));
    at::Tensor out = part.added;
    if (receives) {
      auto& state = arrived[static_cast<size_t>(block)];
      arrivals[static_cast<size_t>(block)].wait();
      if (sends) out = backwards ? kernels::apply_transposed(part, state) + part.added : kernels::apply(part, state);
    }
    if (!sends) continue;
    sent.push_back(out.contiguous());
    departures.push_back(axis.group->start_send(sent.back(), to));
  }
  for (auto& departure : departures) departure.wait();
  return receives ? device::cat(arrived, 3) : at::Tensor();
}

class Lasp1 final : public StateMethod {
 public:
  const char* name() const override { return "lasp1"; }
  bool overlaps() const override { return false; }
  Before forward(const ContextAxis& axis, const StateRun&, const LinearAttentionMap& own,
                 const std::function<void()>& meanwhile) const override {
    meanwhile();
    return {chain(axis, own, false, 1), own.matrix};
  }
  at::Tensor backward(const ContextAxis& axis, const StateRun&, const at::Tensor& own, const at::Tensor& log_decay,
                      const at::Tensor& transitions, const std::function<void()>& meanwhile) const override {
    meanwhile();
    return chain(axis, {own, log_decay, transitions}, true, 1);
  }
};

class Zeco final : public StateMethod {
 public:
  const char* name() const override { return "zeco"; }
  Before forward(const ContextAxis& axis, const StateRun&, const LinearAttentionMap& own,
                 const std::function<void()>& meanwhile) const override {
    Beside arriving(own.added.device(), [&] { return chain(axis, own, false, kBlocks); });
    meanwhile();
    return {arriving.wait(), own.matrix};
  }
  at::Tensor backward(const ContextAxis& axis, const StateRun&, const at::Tensor& own, const at::Tensor& log_decay,
                      const at::Tensor& transitions, const std::function<void()>& meanwhile) const override {
    const LinearAttentionMap map{own, log_decay, transitions};
    Beside arriving(own.device(), [&] { return chain(axis, map, true, kBlocks); });
    meanwhile();
    return arriving.wait();
  }
};

const Lasp1 lasp1;
const Zeco zeco;

}  // namespace

constinit const StateMethod& kLasp1 = lasp1;
constinit const StateMethod& kZeco = zeco;

}  // namespace ingot::parallel
