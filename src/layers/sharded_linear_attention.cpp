#include "layers/sharded_linear_attention.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <functional>
#include <future>
#include <limits>
#include <optional>

#include "base/error.h"
#include "layers/autograd.h"

namespace ingot::layers {
namespace {

using kernels::LinearAttentionInputs;
using kernels::LinearAttentionMap;

constexpr int64_t kBlocks = 4;  // of columns of a state, that zeco passes on one by one

bool has_delta_rule(const LinearAttentionInputs& in) { return in.beta.defined(); }
// Whether all ranks know each other's decay without being told.
bool decay_is_known(const LinearAttentionInputs& in) { return !has_delta_rule(in) && (!in.log_gate.defined() || in.log_gate.dim() == 1); }

// bool [batch]: rows in which a document begins among the tokens of rank `of`.
at::Tensor begins_at(const Sequences& sequences, int of) {
  const int64_t length = sequences.seq();
  const auto& starts = sequences.document_start();
  if (!starts.defined()) return {};
  const auto positions = at::arange(of * length, (of + 1) * length, starts.options());
  return starts.narrow(1, of * length, length).eq(positions).any(1);
}

// Maps of all ranks, in their order.
using Maps = std::vector<LinearAttentionMap>;

// The part of a map that its owner alone knows, side by side, and back.
at::Tensor packed(const LinearAttentionMap& map, bool decay_is_known) {
  std::vector<at::Tensor> parts = {map.added.flatten(2)};
  if (map.matrix.defined()) parts.push_back(map.matrix.flatten(2));
  else if (!decay_is_known) parts.push_back(map.log_decay);
  return at::cat(parts, 2).contiguous();
}

LinearAttentionMap unpacked(const at::Tensor& message, const LinearAttentionMap& like) {
  const int64_t state = like.added.size(2) * like.added.size(3);
  LinearAttentionMap map{message.narrow(2, 0, state).view(like.added.sizes()), like.log_decay, like.matrix};
  const auto rest = message.narrow(2, state, message.size(2) - state);
  if (like.matrix.defined()) map.matrix = rest.view(like.matrix.sizes());
  else if (rest.size(2) > 0) map.log_decay = rest;
  return map;
}

// What both passes keep.
struct Kept {
  SequenceAxis axis;
  bool is_delta, decay_is_known;
  bool in_parts;  // work goes on while states travel; not in a chain, nor under the delta rule, where all hangs on the state
  std::vector<at::Tensor> begins;  // of each rank
};

// The decay of rank `of`'s run where all know it: without documents that of every run, which are equally long.
LinearAttentionMap with_known_decay(LinearAttentionMap map, const at::Tensor& without_documents, const at::Tensor& begins) {
  map.log_decay = without_documents;
  if (begins.defined()) map.log_decay = without_documents.masked_fill(begins.view({-1, 1, 1}), -std::numeric_limits<double>::infinity());
  return map;
}

// One gather of the states of all ranks, and of their maps in the forward pass.
class Gather {
 public:
  Gather(const SequenceAxis& axis, const at::Tensor& own) : own_(own) {
    auto sizes = own.sizes().vec();
    sizes.insert(sizes.begin(), axis.size);
    all_ = at::empty(sizes, own.options());
    work_ = axis.group->start_all_gather(all_, own_);
  }
  at::Tensor wait() {
    work_.wait();
    return all_;
  }

 private:
  at::Tensor own_, all_;
  comm::Work work_;
};

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
at::Tensor chain(const SequenceAxis& axis, const LinearAttentionMap& own, bool backwards, int64_t blocks) {
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
  return receives ? at::cat(arrived, 3) : at::Tensor();
}

// Parts of an output or a gradient are added before they are rounded: bf16 is upcast to fp32 for them.
LinearAttentionInputs upcast(LinearAttentionInputs in) {
  for (auto* x : {&in.q, &in.k, &in.v})
    if (x->scalar_type() == at::kBFloat16) *x = x->to(at::kFloat);
  return in;
}

// What gates have of both states: the decay of the whole run stands between them.
void add_gate_gradient_of_both(kernels::LinearAttentionGradients& grads, const LinearAttentionInputs& in, const at::Tensor& log_decay,
                               const at::Tensor& state, const at::Tensor& behind) {
  if (!state.defined() || !behind.defined() || !in.log_gate.defined() || in.log_gate.dim() == 1) return;
  const auto by_channel = (log_decay.exp().unsqueeze(-1) * behind * state).sum(-1);  // [batch, heads, key_dim]
  grads.log_gate.add_((in.log_gate.dim() == 3 ? by_channel.sum(-1) : by_channel).unsqueeze(1));
}

struct ShardedLinearFunction : Function<ShardedLinearFunction, WorkKind::linear_attention> {
  static LinearAttentionInputs inputs(const TensorList& t) { return {t[0], t[1], t[2], t[3], t[4], t[5]}; }

  // Saved: the inputs; the state before this rank's tokens; transitions, of all ranks for lasp2, else this rank's; its decay, which the
  // gates of the run need whose states both come from elsewhere; and what the kernel asks for.
  static at::Tensor forward(Context& context, const TensorList& tensors, const Kept& kept) {
    context.keep(kept);
    const auto in = inputs(tensors);
    const auto& axis = kept.axis;
    const auto own = kernels::linear_attention_map(in);
    const bool adds_state = kept.in_parts && axis.rank > 0;
    kernels::LinearAttentionOutput result;
    at::Tensor state, transitions;
    const auto own_part = [&] {
      if (kept.in_parts) result = kernels::linear_attention_forward(adds_state ? upcast(in) : in);
    };
    if (axis.states == SequenceAxis::States::lasp2) {
      Gather gather(axis, packed(own, kept.decay_is_known));
      own_part();
      const auto all = gather.wait();
      transitions = all.narrow(3, own.added.size(2) * own.added.size(3), all.size(3) - own.added.size(2) * own.added.size(3)).clone();
      for (int rank = 0; rank < axis.rank; ++rank) {
        const auto map = map_of(kept, in, unpacked(all[rank], own), rank);
        state = state.defined() ? kernels::apply(map, state) : map.added.clone();
      }
    } else if (axis.states == SequenceAxis::States::lasp1) {
      state = chain(axis, own, false, 1);
    } else {
      Beside arriving(in.q.device(), [&] { return chain(axis, own, false, kBlocks); });
      own_part();
      state = arriving.wait();
    }
    if (!kept.in_parts) result = kernels::linear_attention_forward(in, state);
    else if (adds_state) kernels::add_linear_attention_of_state(result.out, upcast(in), state);
    if (axis.states != SequenceAxis::States::lasp2) transitions = own.matrix;
    auto saved = tensors;
    saved.insert(saved.end(), {state, transitions, own.log_decay, result.saved});
    context.save(saved);
    return result.out.to(in.v.scalar_type());
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto& kept = context.kept<Kept>();
    const auto& axis = kept.axis;
    const auto saved = context.saved();
    const auto in = inputs(saved);
    const auto &state = saved[6], &transitions = saved[7], &log_decay = saved[8], &of_forward = saved[9];
    const auto grad_out = grads[0].contiguous();
    // The states' own gradients, and where they go: each rank's map transposed.
    const auto own_gradient = kernels::linear_attention_state_gradient(grad_out, in).contiguous();
    const bool adds_states = kept.in_parts && axis.is_on();
    const auto parts_in = adds_states ? upcast(in) : in;
    const auto parts_grad = adds_states && grad_out.scalar_type() == at::kBFloat16 ? grad_out.to(at::kFloat) : grad_out;
    kernels::LinearAttentionGradients out;
    // All that does not need the gradient of the state behind: this rank's own part, and that of the state before.
    const auto own_part = [&] {
      if (!kept.in_parts) return;
      out = kernels::linear_attention_backward(parts_grad, {}, parts_in, {}, of_forward);
      if (state.defined()) kernels::add_gradients_of_states(out, parts_grad, parts_in, state, {});
    };
    at::Tensor behind;  // gradient of the state behind this rank's tokens
    if (axis.states == SequenceAxis::States::lasp2) {
      Gather gather(axis, own_gradient);
      own_part();
      behind = folded_from_behind(kept, in, gather.wait(), transitions);
    } else {
      const LinearAttentionMap map{own_gradient, log_decay, transitions};
      const bool in_blocks = axis.states == SequenceAxis::States::zeco;
      if (in_blocks) {
        Beside arriving(in.q.device(), [&] { return chain(axis, map, true, kBlocks); });
        own_part();
        behind = arriving.wait();
      } else {
        behind = chain(axis, map, true, 1);
      }
    }
    if (!kept.in_parts) {
      out = kernels::linear_attention_backward(grad_out, behind, in, state, of_forward);
    } else if (behind.defined()) {
      kernels::add_gradients_of_states(out, parts_grad, parts_in, {}, behind);
      add_gate_gradient_of_both(out, in, log_decay, state, behind);
    }
    return {out.q.to(in.q.scalar_type()), out.k.to(in.k.scalar_type()), out.v.to(in.v.scalar_type()), out.log_gate, out.beta};
  }

 private:
  static LinearAttentionMap map_of(const Kept& kept, const LinearAttentionInputs& in, const LinearAttentionMap& map, int rank) {
    if (!kept.decay_is_known) return map;
    const auto options = map.added.options();
    auto decay = at::zeros({map.added.size(0), map.added.size(1), 1}, options);
    if (in.log_gate.defined()) decay = decay + (in.log_gate.to(options.dtype()) * in.q.size(1)).view({1, -1, 1});
    return with_known_decay(map, decay, kept.begins[static_cast<size_t>(rank)]);
  }

  // The gradients of all ranks' states, through the maps of the ranks behind this one.
  static at::Tensor folded_from_behind(const Kept& kept, const LinearAttentionInputs& in, const at::Tensor& all,
                                       const at::Tensor& transitions) {
    at::Tensor behind;
    for (int rank = kept.axis.size - 1; rank > kept.axis.rank; --rank) {
      if (!behind.defined()) {
        behind = all[rank].clone();
        continue;
      }
      LinearAttentionMap map{all[rank], {}, {}};
      if (kept.is_delta) map.matrix = transitions[rank].view({all.size(1), all.size(2), all.size(3), all.size(3)});
      else map.log_decay = transitions[rank];
      behind = kernels::apply_transposed(map_of(kept, in, map, rank), behind) + all[rank];
    }
    return behind;
  }
};

void require_contiguous(const SequenceAxis& axis) {
  if (axis.is_on() && axis.zigzag)
    throw base::ConfigError(
        "parallel.context_order = zigzag: linear attention passes states from one part of a sequence to the next, so each rank's tokens "
        "must "
        "be one part; set it to contiguous");
}

struct BidirectionalFunction : Function<BidirectionalFunction, WorkKind::linear_attention> {
  static at::Tensor wide(const at::Tensor& x) { return x.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).transpose(1, 2); }
  static at::Tensor sum_over_ranks(const SequenceAxis& axis, const at::Tensor& own) { return Gather(axis, own.contiguous()).wait().sum(0); }

  static at::Tensor forward(Context& context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const SequenceAxis& axis) {
    context.keep(axis);
    const auto state = sum_over_ranks(axis, at::matmul(wide(k).transpose(2, 3), wide(v)));  // [batch, heads, key_dim, value_dim]
    context.save({q, k, v, state});
    return at::matmul(wide(q), state).transpose(1, 2).to(v.scalar_type()).contiguous();
  }
  // Of all ranks' outputs, not of those behind: algorithm 3 of LASP-2 prints that sum, which finite differences refute.
  static TensorList backward(Context& context, const TensorList& grads) {
    const auto saved = context.saved();
    const auto q = wide(saved[0]), k = wide(saved[1]), v = wide(saved[2]), grad = wide(grads[0]);
    Gather gather(context.kept<SequenceAxis>(), at::matmul(q.transpose(2, 3), grad).contiguous());
    const auto narrow = [&](const at::Tensor& x, size_t like) { return x.transpose(1, 2).to(saved[like].scalar_type()).contiguous(); };
    const auto grad_q = narrow(at::matmul(grad, saved[3].transpose(2, 3)), 0);  // needs the forward pass's state alone
    const auto grad_state = gather.wait().sum(0);
    return {grad_q, narrow(at::matmul(v, grad_state.transpose(2, 3)), 1), narrow(at::matmul(k, grad_state), 2)};
  }
};

}  // namespace

at::Tensor sharded_linear_attention(const LinearAttentionInputs& in, const Sequences& sequences) {
  const auto& axis = sequences.axis();
  require_contiguous(axis);
  Kept kept{axis, has_delta_rule(in), decay_is_known(in), !has_delta_rule(in) && axis.states != SequenceAxis::States::lasp1, {}};
  for (int rank = 0; rank < axis.size; ++rank) kept.begins.push_back(begins_at(sequences, rank));
  return ShardedLinearFunction::apply(TensorList{in.q, in.k, in.v, in.log_gate, in.beta, sequences.is_start()}, kept);
}

at::Tensor sharded_bidirectional_linear_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                  const Sequences& sequences) {
  require_contiguous(sequences.axis());
  if (sequences.document_start().defined())
    throw base::ConfigError("linear attention without a causal mask takes one document a row when sequences are spread over ranks");
  return BidirectionalFunction::apply(q, k, v, sequences.axis());
}

}  // namespace ingot::layers
