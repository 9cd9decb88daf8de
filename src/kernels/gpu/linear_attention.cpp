#include "kernels/gpu/linear_attention.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "device/device.h"
#include "device/gpu_library.h"
#include "device/stream.h"
#include "device/virtual_device.h"
#include "kernels/reference/linear_attention.h"

namespace ingot::kernels::gpu {
namespace {

constexpr int64_t kStrip = 16, kLeastDim = 32, kMostDim = 256;
constexpr const char *kForward = "ingot_linear_attention_forward", *kBackward = "ingot_linear_attention_backward";

// Sequences are cut until there are this many blocks, two for each multiprocessor of an H100, if parts keep so many chunks: each part's
// states are computed twice.
constexpr int64_t kBlocks = 264, kLeastChunks = 16;

// The delta rule's parts would change a state by matrices, so that it has one.
int64_t parts_of(const LinearAttentionProblem& p) {
  if (p.beta != nullptr) return 1;
  return std::clamp<int64_t>(kBlocks / (p.pairs * p.key_tiles * p.value_tiles), 1, std::max<int64_t>(1, p.chunks / kLeastChunks));
}

// In vectors of 16 bytes.
at::Tensor in_vectors(const at::Tensor& x) {
  const auto fits = [&](int64_t dim) { return x.size(dim) == 1 || x.stride(dim) % 8 == 0; };
  const bool is_fit = x.stride(3) == 1 && fits(0) && fits(1) && fits(2) && x.storage_offset() % 8 == 0;
  return is_fit ? x : x.clone(at::MemoryFormat::Contiguous);
}

at::Tensor like(const at::Tensor& x) { return at::empty(x.sizes(), x.options().memory_format(at::MemoryFormat::Contiguous)); }

template <class T>
T* numbers(const at::Tensor& x) {
  return x.defined() ? static_cast<T*>(const_cast<void*>(x.const_data_ptr())) : nullptr;
}
HeadRows rows(const at::Tensor& x) { return {numbers<void>(x), x.stride(0), x.stride(1), x.stride(2)}; }

bool is_by_channel(const LinearAttentionInputs& in) { return in.log_gate.defined() && in.log_gate.dim() == 4; }
// By the names of the CPU's.
const char* forward_name(const LinearAttentionInputs& in) {
  if (in.beta.defined() && is_by_channel(in)) return "linear_attention_kda";
  return in.beta.defined() ? "linear_attention_delta" : is_by_channel(in) ? "linear_attention_channels" : "linear_attention";
}
const char* backward_name(const LinearAttentionInputs& in) {
  if (in.beta.defined() && is_by_channel(in)) return "linear_attention_kda.backward";
  return in.beta.defined()   ? "linear_attention_delta.backward"
         : is_by_channel(in) ? "linear_attention_channels.backward"
                             : "linear_attention.backward";
}

// Operands and work areas as the kernels take them, alive while these are queued.
struct Operands {
  at::Tensor q, k, v, gate, beta;
  at::Tensor made, decays, states, grad_states, scores, grad_scores, gate_of_scores, reads, writes, kept, decayed_q, decayed_k,
      k_from_start, whole;
  at::Tensor inverse, products, grad_products, solved_k, residuals, written, grad_written;
  LinearAttentionProblem problem{};

  explicit Operands(const LinearAttentionInputs& in) : q(in_vectors(in.q)), k(in_vectors(in.k)), v(in_vectors(in.v)) {
    auto& p = problem;
    if (is_by_channel(in)) {
      gate = reference::gates_by_head(in).transpose(1, 2);  // [batch, seq, heads, key_dim]
      if (gate.stride(3) != 1) gate = gate.contiguous();
      p.channel_gate = rows(gate);
    } else if (in.log_gate.defined() || in.is_start.defined()) {
      gate = reference::gates_by_head(in).squeeze(-1).contiguous();
      p.gate = numbers<float>(gate);
    }
    if (in.beta.defined()) beta = in.beta.to(at::kFloat).transpose(1, 2).contiguous(), p.beta = numbers<float>(beta);
    p.batch = q.size(0), p.seq = q.size(1), p.heads = q.size(2), p.key_dim = q.size(3), p.value_dim = v.size(3);
    p.cut();
    p.q = rows(q), p.k = rows(k), p.v = rows(v);
  }

  at::Tensor fp32(at::IntArrayRef sizes) const { return at::empty(sizes, q.options().dtype(at::kFloat)); }
  at::Tensor state() const { return fp32({problem.batch, problem.heads, problem.key_dim, problem.value_dim}); }

  void allocate(bool is_backward, bool has_gate_gradient) {
    auto& p = problem;
    const bool has_channels = p.channel_gate.data != nullptr;
    const auto narrow = [&](int64_t rows, int64_t columns) { return at::empty({p.pairs, p.chunks, rows, columns}, q.options()); };
    scores = narrow(kLinearAttentionChunk, kLinearAttentionChunk), states = narrow(p.key_dim, p.value_dim);
    if (p.parts > 1)
      made = fp32({p.pairs, p.parts, p.key_dim, p.value_dim}), decays = fp32({p.pairs, p.parts, has_channels ? p.key_dim : 1});
    if (is_backward) grad_scores = like(scores), grad_states = like(states);
    if (has_channels) {
      decayed_q = like(q), decayed_k = like(k), whole = fp32({p.pairs, p.chunks, p.key_dim});
      p.decayed_q = rows(decayed_q), p.decayed_k = rows(decayed_k), p.whole = numbers<float>(whole);
      p.kept_parts = p.beta != nullptr ? p.value_dim / kStrip : p.value_tiles;
      if (p.beta != nullptr) k_from_start = like(k), p.k_from_start = rows(k_from_start);
      if (is_backward) kept = fp32({p.kept_parts, p.pairs, p.chunks, p.key_dim});
    } else if (has_gate_gradient) {
      p.read_tiles = p.beta != nullptr ? 2 * p.key_tiles : p.key_tiles;
      p.kept_parts = (p.beta != nullptr ? p.value_dim / kStrip : p.key_tiles * p.value_tiles) * kStateTileParts;
      gate_of_scores = fp32({p.pairs, p.seq}), reads = fp32({p.read_tiles, p.pairs, p.seq}), writes = fp32({p.key_tiles, p.pairs, p.seq});
      kept = fp32({p.pairs, p.chunks, p.kept_parts});
    }
    if (p.beta != nullptr) allocate_delta_rule(is_backward);
    p.made = numbers<float>(made), p.decays = numbers<float>(decays), p.gate_of_scores = numbers<float>(gate_of_scores);
    p.reads = numbers<float>(reads), p.writes = numbers<float>(writes), p.kept = numbers<float>(kept);
    p.states = numbers<uint16_t>(states), p.grad_states = numbers<uint16_t>(grad_states);
    p.scores = numbers<uint16_t>(scores), p.grad_scores = numbers<uint16_t>(grad_scores);
  }

  void allocate_delta_rule(bool is_backward) {
    auto& p = problem;
    inverse = like(scores), solved_k = like(k), residuals = like(v), written = like(v);
    if (is_backward) products = like(scores), grad_products = like(scores), grad_written = like(v), p.grad_written = rows(grad_written);
    p.inverse = numbers<uint16_t>(inverse), p.products = numbers<uint16_t>(products), p.grad_products = numbers<uint16_t>(grad_products);
    p.solved_k = rows(solved_k), p.residuals = rows(residuals), p.written = rows(written);
  }

  // By the convention of layers/cost.h, as the CPU's.
  double flops() const {
    const auto& p = problem;
    return 2.0 * static_cast<double>(p.batch * p.seq * p.heads) * static_cast<double>(p.key_dim * p.value_dim) * (beta.defined() ? 3 : 2);
  }
};

at::Tensor in_fp32(const at::Tensor& state) { return state.defined() ? state.to(at::kFloat).contiguous() : state; }

void run_on_gpu(const char* symbol, const LinearAttentionProblem& problem, at::Device device) {
  auto* const launch = device::gpu_function<int(const LinearAttentionProblem*, int)>(symbol);
  const int error = launch ? launch(&problem, device.index()) : -1;
  if (error != 0) throw base::Error(fmt::format("linear attention did not start on {}: error {} of the driver", device.str(), error));
}

// By the host's kernels. Of the states only the first is kept, from which the backward pass starts again.
void forward_on_emulated(const LinearAttentionInputs& in, const at::Tensor& initial_state, const LinearAttentionOutput& result) {
  device::launch({in.q, in.k, in.v, in.log_gate, in.beta, in.is_start, initial_state, result.out, result.final_state, result.saved},
                 [](const auto& host) {
                   const auto made = kernels::linear_attention_forward({host[0], host[1], host[2], host[3], host[4], host[5]}, host[6]);
                   host[7].copy_(made.out);
                   host[8].copy_(made.final_state);
                   host[9].zero_();
                   if (host[6].defined()) host[9].select(2, 0).copy_(host[6]);
                 });
}

void backward_on_emulated(const LinearAttentionInputs& in, const at::Tensor& grad_out, const at::Tensor& grad_final,
                          const at::Tensor& saved, const LinearAttentionGradients& grads, const at::Tensor& grad_gate,
                          const at::Tensor& grad_beta) {
  device::launch({in.q, in.k, in.v, in.log_gate, in.beta, in.is_start, saved, grad_out, grad_final, grads.q, grads.k, grads.v,
                  grads.initial_state, grad_gate, grad_beta},
                 [](const auto& host) {
                   const LinearAttentionInputs of_host{host[0], host[1], host[2], host[3], host[4], host[5]};
                   const auto initial = host[6].select(2, 0);
                   const auto states = kernels::linear_attention_forward(of_host, initial).saved;
                   const auto made = kernels::linear_attention_backward(host[7], host[8], of_host, initial, states);
                   host[9].copy_(made.q);
                   host[10].copy_(made.k);
                   host[11].copy_(made.v);
                   host[12].copy_(made.initial_state);
                   if (host[13].defined()) host[13].copy_(made.log_gate.dim() == 3 ? made.log_gate.transpose(1, 2) : made.log_gate);
                   if (host[14].defined()) host[14].copy_(made.beta.transpose(1, 2));
                 });
}

}  // namespace

bool takes_linear_attention(const LinearAttentionInputs& in) {
  const auto device = in.q.device();
  const auto fits = [](int64_t dim) { return dim % kStrip == 0 && dim >= kLeastDim && dim <= kMostDim; };
  if (!device::is_gpu(device) || in.q.scalar_type() != at::kBFloat16 || !fits(in.q.size(3)) || !fits(in.v.size(3))) return false;
  return device::is_virtual(device) || device::find_gpu_function(kForward) != nullptr;
}

LinearAttentionOutput linear_attention_forward(const LinearAttentionInputs& in, const at::Tensor& initial_state_in, int64_t parts,
                                               const RunLinearAttention& run) {
  Operands o(in);
  auto& p = o.problem;
  p.parts = parts > 0 ? parts : parts_of(p);
  const auto initial_state = in_fp32(initial_state_in);
  LinearAttentionOutput result{like(in.v), o.state(), o.fp32({p.batch, p.heads, p.parts, p.key_dim, p.value_dim})};
  o.allocate(/*is_backward=*/false, /*has_gate_gradient=*/false);
  p.out = rows(result.out), p.initial_state = numbers<float>(initial_state);
  p.final_state = numbers<float>(result.final_state), p.saved = numbers<float>(result.saved);
  device::note(forward_name(in), {in.q, in.k, in.v, o.gate, o.beta, initial_state}, {result.out, result.final_state, result.saved},
               o.flops());
  if (device::is_counting(in.q)) return result;
  if (device::is_virtual(in.q.device())) forward_on_emulated(in, initial_state, result);
  else run(p);
  return result;
}

LinearAttentionGradients linear_attention_backward(const at::Tensor& grad_out_in, const at::Tensor& grad_final_in,
                                                   const LinearAttentionInputs& in, const at::Tensor& saved,
                                                   const RunLinearAttention& run) {
  Operands o(in);
  auto& p = o.problem;
  p.parts = saved.size(2);
  const auto grad_out = in_vectors(grad_out_in), grad_final = in_fp32(grad_final_in);
  const bool has_gate_gradient = in.log_gate.defined() && in.log_gate.dim() >= 3, has_channels = is_by_channel(in);
  LinearAttentionGradients grads{like(in.q), like(in.k), like(in.v), {}, {}, o.state()};
  at::Tensor grad_gate;
  const auto grad_beta = in.beta.defined() ? o.fp32({p.batch, p.heads, p.seq}) : at::Tensor();
  if (has_gate_gradient) grad_gate = has_channels ? o.fp32(in.log_gate.sizes()) : o.fp32({p.batch, p.heads, p.seq});
  o.allocate(/*is_backward=*/true, has_gate_gradient);
  p.grad_out = rows(grad_out), p.grad_q = rows(grads.q), p.grad_k = rows(grads.k), p.grad_v = rows(grads.v);
  p.saved = numbers<float>(saved), p.grad_final = numbers<float>(grad_final);
  p.grad_initial = numbers<float>(grads.initial_state), p.grad_gate = has_channels ? nullptr : numbers<float>(grad_gate);
  p.grad_beta = numbers<float>(grad_beta);
  if (has_channels) p.grad_channel_gate = rows(grad_gate);
  device::note(backward_name(in), {grad_out, in.q, in.k, in.v, o.gate, o.beta, saved, grad_final},
               {grads.q, grads.k, grads.v, grad_gate, grad_beta, grads.initial_state}, 2 * o.flops());
  if (!device::is_counting(in.q)) {
    if (device::is_virtual(in.q.device())) backward_on_emulated(in, grad_out, grad_final, saved, grads, grad_gate, grad_beta);
    else run(p);
  }
  if (has_gate_gradient) grads.log_gate = (has_channels ? grad_gate : grad_gate.transpose(1, 2)).to(in.log_gate.scalar_type()).contiguous();
  if (in.beta.defined()) grads.beta = grad_beta.transpose(1, 2).to(in.beta.scalar_type()).contiguous();
  return grads;
}

LinearAttentionOutput linear_attention_forward(const LinearAttentionInputs& in, const at::Tensor& initial_state) {
  return linear_attention_forward(in, initial_state, /*parts=*/0, [&](const auto& p) { run_on_gpu(kForward, p, in.q.device()); });
}

LinearAttentionGradients linear_attention_backward(const at::Tensor& grad_out, const at::Tensor& grad_final_state,
                                                   const LinearAttentionInputs& in, const at::Tensor& saved) {
  return linear_attention_backward(grad_out, grad_final_state, in, saved, [&](const auto& p) { run_on_gpu(kBackward, p, in.q.device()); });
}

}  // namespace ingot::kernels::gpu
