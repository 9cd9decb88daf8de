#include "parallel/pipeline.h"

#include <tuple>

namespace ingot::parallel {
namespace {

// What a message carries: a stream into `piece`, or the gradient of the stream that left it.
struct Message {
  bool is_gradient;
  int piece, microbatch;
  auto operator<=>(const Message&) const = default;
};

// The message that an action ends with and the stage that it goes to; false when it ends with none.
bool message_after(const PipelineShape& s, int stage, const Action& a, Message& message, int& to) {
  const int piece = s.piece_of(stage, a.chunk);
  if (a.pass == Pass::weights) return false;
  const int target = a.pass == Pass::forward ? piece + 1 : piece - 1;
  if (target < 0 || target >= s.pieces()) return false;
  message = {a.pass == Pass::backward, target, a.microbatch};
  to = target % s.stages;
  return true;
}

// Messages of one other stage, in the order in which it sends them; what is not yet asked for waits here.
class Inbox {
 public:
  Inbox(comm::Group& group, int from, std::deque<Message> expected, PipelineStage& stage)
      : group_(group), from_(from), expected_(std::move(expected)), stage_(stage) {
    start_next();
  }
  std::vector<at::Tensor> take(const Message& wanted) {
    while (!arrived_.contains(wanted)) {
      for (auto& work : works_) work.wait();
      works_.clear();
      arrived_[expected_.front()] = std::move(under_way_);
      expected_.pop_front();
      start_next();
    }
    auto tensors = std::move(arrived_.at(wanted));
    arrived_.erase(wanted);
    return tensors;
  }

 private:
  void start_next() {
    if (expected_.empty()) return;
    under_way_ = stage_.empty_stream();
    for (const auto& tensor : under_way_) works_.push_back(group_.start_receive(tensor, from_));
  }
  comm::Group& group_;
  int from_;
  std::deque<Message> expected_;
  PipelineStage& stage_;
  std::vector<at::Tensor> under_way_;
  std::vector<comm::Work> works_;
  std::map<Message, std::vector<at::Tensor>> arrived_;
};

struct Sent {
  std::vector<at::Tensor> tensors;
  std::vector<comm::Work> works;
};

// Of validation: piece after piece.
std::vector<Action> forward_actions(const PipelineShape& shape) {
  std::vector<Action> actions;
  for (int chunk = 0; chunk < shape.chunks; ++chunk)
    for (int m = 0; m < shape.microbatches; ++m) actions.push_back({Pass::forward, chunk, m});
  return actions;
}

std::vector<Action> actions_for(const PipelineShape& shape, int stage, bool forward_only) {
  return forward_only ? forward_actions(shape) : actions_of(shape, stage);
}

}  // namespace

void run_pipeline(const PipelineShape& shape, comm::Group& group, PipelineStage& stage, bool forward_only) {
  const int me = group.rank();
  std::map<int, Inbox> inboxes;
  for (int other = 0; other < shape.stages; ++other) {
    if (other == me) continue;
    std::deque<Message> expected;
    Message message{};
    int to = 0;
    for (const auto& action : actions_for(shape, other, forward_only))
      if (message_after(shape, other, action, message, to) && to == me) expected.push_back(message);
    if (!expected.empty()) inboxes.try_emplace(other, group, other, std::move(expected), stage);
  }
  std::deque<Sent> sent;
  for (const auto& a : actions_for(shape, me, forward_only)) {
    const int piece = shape.piece_of(me, a.chunk);
    std::vector<at::Tensor> out;
    const auto arriving = [&](bool is_gradient, int source) -> std::vector<at::Tensor> {
      if (source < 0 || source >= shape.pieces()) return {};
      return inboxes.at(source % shape.stages).take({is_gradient, piece, a.microbatch});
    };
    switch (a.pass) {
      case Pass::forward: out = stage.forward(a.chunk, a.microbatch, arriving(false, piece - 1)); break;
      case Pass::backward: out = stage.backward(a.chunk, a.microbatch, arriving(true, piece + 1)); break;
      case Pass::weights: stage.weights(a.chunk, a.microbatch); break;
    }
    Message message{};
    int to = 0;
    if (!message_after(shape, me, a, message, to)) continue;
    Sent under_way{std::move(out), {}};
    for (auto& tensor : under_way.tensors) {
      tensor = tensor.contiguous();
      under_way.works.push_back(group.start_send(tensor, to));
    }
    sent.push_back(std::move(under_way));
    // What has been taken need not be kept; waiting is for the end.
    while (!sent.empty() && std::all_of(sent.front().works.begin(), sent.front().works.end(), [](comm::Work& w) { return w.is_done(); })) {
      for (auto& work : sent.front().works) work.wait();
      sent.pop_front();
    }
  }
  for (auto& under_way : sent)
    for (auto& work : under_way.works) work.wait();
}

}  // namespace ingot::parallel
