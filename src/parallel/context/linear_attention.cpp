#include "parallel/context/linear_attention.h"

#include "base/error.h"
#include "layers/autograd.h"
#include "parallel/context/state_gather.h"

namespace ingot::parallel {
namespace {

using kernels::LinearAttentionInputs;
using layers::Context, layers::Function, layers::Sequences, layers::TensorList, layers::WorkKind;

bool has_delta_rule(const LinearAttentionInputs& in) { return in.beta.defined(); }
// Whether all ranks know each other's decay without being sent it.
bool decay_is_known(const LinearAttentionInputs& in) { return !has_delta_rule(in) && (!in.log_gate.defined() || in.log_gate.dim() == 1); }

// bool [batch]: rows in which a document begins among the tokens of rank `of`.
at::Tensor begins_at(const Sequences& sequences, int of) {
  const int64_t length = sequences.seq();
  const auto& starts = sequences.document_start();
  if (!starts.defined()) return {};
  const auto positions = at::arange(of * length, (of + 1) * length, starts.options());
  return starts.narrow(1, of * length, length).eq(positions).any(1);
}

// What both passes keep.
struct Kept {
  ContextAxis axis;
  StateRun run;   // without the gate, which is an input
  bool in_parts;  // work goes on while states travel; not in a chain, nor under the delta rule, where all hangs on the state
  // A gate of the run itself is an input, saved with the others.
  StateRun run_with(const LinearAttentionInputs& in) const {
    auto with = run;
    if (run.decay_is_known) with.constant_gate = in.log_gate;
    return with;
  }
};

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
    const auto own_part = [&] {
      if (kept.in_parts) result = kernels::linear_attention_forward(adds_state ? upcast(in) : in);
    };
    const auto [state, transitions] = axis.states->forward(axis, kept.run_with(in), own, own_part);
    if (!kept.in_parts) result = kernels::linear_attention_forward(in, state);
    else if (adds_state) kernels::add_linear_attention_of_state(result.out, upcast(in), state);
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
    // The gradient of the state behind this rank's tokens.
    const auto behind = axis.states->backward(axis, kept.run_with(in), own_gradient, log_decay, transitions, own_part);
    if (!kept.in_parts) {
      out = kernels::linear_attention_backward(grad_out, behind, in, state, of_forward);
    } else if (behind.defined()) {
      kernels::add_gradients_of_states(out, parts_grad, parts_in, {}, behind);
      add_gate_gradient_of_both(out, in, log_decay, state, behind);
    }
    return {out.q.to(in.q.scalar_type()), out.k.to(in.k.scalar_type()), out.v.to(in.v.scalar_type()), out.log_gate, out.beta};
  }
};

void require_contiguous(const ContextAxis& axis) {
  if (axis.is_on() && axis.zigzag)
    throw base::ConfigError(
        "parallel.context_order = zigzag: linear attention passes states from one part of a sequence to the next, so each rank's tokens "
        "must "
        "be one part; set it to contiguous");
}

struct BidirectionalFunction : Function<BidirectionalFunction, WorkKind::linear_attention> {
  static at::Tensor wide(const at::Tensor& x) { return x.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).transpose(1, 2); }
  static at::Tensor sum_over_ranks(const ContextAxis& axis, const at::Tensor& own) {
    return StateGather(axis, own.contiguous()).wait().sum(0);
  }

  static at::Tensor forward(Context& context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ContextAxis& axis) {
    context.keep(axis);
    const auto state = sum_over_ranks(axis, at::matmul(wide(k).transpose(2, 3), wide(v)));  // [batch, heads, key_dim, value_dim]
    context.save({q, k, v, state});
    return at::matmul(wide(q), state).transpose(1, 2).to(v.scalar_type()).contiguous();
  }
  // Of all ranks' outputs, not of those behind: algorithm 3 of LASP-2 prints that sum, which finite differences refute.
  static TensorList backward(Context& context, const TensorList& grads) {
    const auto saved = context.saved();
    const auto q = wide(saved[0]), k = wide(saved[1]), v = wide(saved[2]), grad = wide(grads[0]);
    StateGather gather(context.kept<ContextAxis>(), at::matmul(q.transpose(2, 3), grad).contiguous());
    const auto narrow = [&](const at::Tensor& x, size_t like) { return x.transpose(1, 2).to(saved[like].scalar_type()).contiguous(); };
    const auto grad_q = narrow(at::matmul(grad, saved[3].transpose(2, 3)), 0);  // needs the forward pass's state alone
    const auto grad_state = gather.wait().sum(0);
    return {grad_q, narrow(at::matmul(v, grad_state.transpose(2, 3)), 1), narrow(at::matmul(k, grad_state), 2)};
  }
};

}  // namespace

at::Tensor sharded_linear_attention(const LinearAttentionInputs& in, const Sequences& sequences, const ContextAxis& axis) {
  require_contiguous(axis);
  const bool is_delta = has_delta_rule(in);
  Kept kept{axis, {is_delta, decay_is_known(in), {}, in.q.size(1), {}}, !is_delta && axis.states->overlaps()};
  for (int rank = 0; rank < axis.size; ++rank) kept.run.begins.push_back(begins_at(sequences, rank));
  return ShardedLinearFunction::apply(TensorList{in.q, in.k, in.v, in.log_gate, in.beta, sequences.is_start()}, kept);
}

at::Tensor sharded_bidirectional_linear_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Sequences& sequences,
                                                  const ContextAxis& axis) {
  require_contiguous(axis);
  if (sequences.document_start().defined())
    throw base::ConfigError("linear attention without a causal mask takes one document a row when sequences are spread over ranks");
  return BidirectionalFunction::apply(q, k, v, axis);
}

}  // namespace ingot::parallel
