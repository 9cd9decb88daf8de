// Lays the work of the linear-attention kernels out: operands, work areas, and how rows are cut into parts where there are few heads.
#include "kernels/cpu/linear_attention.h"

#include "device/virtual_device.h"
#include "kernels/cpu/rows_parallel.h"
#include "kernels/reference/linear_attention.h"

namespace ingot::kernels::cpu {
namespace {

// Rows are cut until there are this many tasks, where they have as many segments: enough for the threads of most machines.
constexpr int64_t kTasks = 16;

at::Tensor with_dense_dim(const at::Tensor& x) { return x.size(3) <= 1 || x.stride(3) == 1 ? x : x.contiguous(); }

TokenRows rows(const at::Tensor& x) { return {x.data_ptr(), x.stride(0), x.stride(1), x.stride(2)}; }

bool is_by_channel(const LinearAttentionInputs& in) { return in.log_gate.defined() && in.log_gate.dim() == 4; }

const LinearAttentionKernel& kernel_for(const LinearAttentionInputs& in, const LinearAttentionTiles& tiles) {
  if (in.beta.defined()) return is_by_channel(in) ? tiles.kda : tiles.delta;
  return is_by_channel(in) ? tiles.channels : tiles.heads;
}

std::string name_of(const LinearAttentionInputs& in) {
  if (in.beta.defined()) return is_by_channel(in) ? "linear_attention_kda" : "linear_attention_delta";
  return is_by_channel(in) ? "linear_attention_channels" : "linear_attention";
}

// Operands as the kernel reads them, alive while it runs.
struct Operands {
  at::Tensor q, k, v, gate, beta, is_start;
  LinearAttentionProblem problem{};
  const LinearAttentionKernel& kernel;
  std::string name;  // in a trace
  bool is_counted;   // nothing is computed

  Operands(const LinearAttentionInputs& in, const LinearAttentionTiles& tiles)
      : q(with_dense_dim(in.q)),
        k(with_dense_dim(in.k)),
        v(with_dense_dim(in.v)),
        kernel(kernel_for(in, tiles)),
        name(name_of(in)),
        is_counted(device::is_counting(in.q)) {
    auto& p = problem;
    p.batch = q.size(0), p.seq = q.size(1), p.heads = q.size(2), p.key_dim = q.size(3), p.value_dim = v.size(3);
    p.is_bf16 = q.scalar_type() == at::kBFloat16;
    p.chunk = kernel.chunk;
    p.q = rows(q), p.k = rows(k), p.v = rows(v);
    if (is_by_channel(in)) {
      gate = with_dense_dim(in.log_gate.to(at::kFloat));
      p.channel_gate = rows(gate);
      if (in.is_start.defined()) is_start = in.is_start.contiguous(), p.is_start = is_start.const_data_ptr<bool>();
    } else {
      if (in.log_gate.defined() || in.is_start.defined()) gate = reference::gates_by_head(in).squeeze(-1).contiguous();
      p.gate = floats(gate);
      p.same_gates = !in.is_start.defined() && (!in.log_gate.defined() || in.log_gate.dim() == 1);
    }
    if (in.beta.defined()) beta = in.beta.to(at::kFloat).transpose(1, 2).contiguous(), p.beta = floats(beta);
    p.parts = in.beta.defined() ? 1 : std::clamp<int64_t>(kTasks / p.pairs(), 1, p.segments());
  }

  // By the convention of layers/cost.h: what one pass over the tokens multiplies.
  double flops() const {
    const auto& p = problem;
    return 2.0 * static_cast<double>(p.batch * p.seq * p.heads) * static_cast<double>(p.key_dim * p.value_dim) * (beta.defined() ? 3 : 2);
  }

  // to += from, over a state, decayed by a part's gates.
  void add(float* to, const float* from, int64_t pair, int64_t part) const {
    if (is_counted) return;
    const auto& p = problem;
    float decay = 1;
    for (int64_t d = 0; d < p.key_dim; ++d, to += p.value_dim, from += p.value_dim) {
      if (d == 0 || p.channel_gate.data != nullptr) decay = decay_of(pair, part, d);
      for (int64_t i = 0; i < p.value_dim; ++i) to[i] += decay * from[i];
    }
  }

 private:
  // exp of the sum of a part's gates, of one channel where they have each their own.
  float decay_of(int64_t pair, int64_t part, int64_t channel) const {
    const auto& p = problem;
    if (!gate.defined()) return 1;
    const int64_t begin = p.first_chunk(p.first_segment(part)) * p.chunk;
    const int64_t end = std::min(p.seq, p.first_chunk(p.first_segment(part + 1)) * p.chunk);
    const int64_t batch = pair / p.heads, head = pair % p.heads;
    double sum = 0;
    for (int64_t t = begin; t < end; ++t) {
      if (p.gate != nullptr) sum += p.gate[pair * p.seq + t];
      else if (p.is_start != nullptr && p.is_start[batch * p.seq + t]) return 0;
      else
        sum += static_cast<const float*>(p.channel_gate.data)[batch * p.channel_gate.batch_stride + t * p.channel_gate.row_stride +
                                                              head * p.channel_gate.head_stride + channel];
    }
    return static_cast<float>(std::exp(sum));
  }
};

template <class Task>
void run(const Operands& o, int64_t tasks, const Task& task) {
  const int64_t scratch_size = o.kernel.scratch(o.problem);
  const auto area = at::empty({workers_for(tasks) * scratch_size}, o.q.options().dtype(at::kFloat));
  if (o.is_counted) return;
  auto* const scratch = area.mutable_data_ptr<float>();
  parallel_tasks(tasks, [&](int64_t i, int64_t worker) { task(o.problem, i, scratch + worker * scratch_size); });
}

template <class Task>
void run(const Operands& o, const Task& task) {
  run(o, o.problem.pairs() * o.problem.parts, task);
}

// The tasks of all parts of a row but one.
template <class Task>
void run_but(const Operands& o, int64_t left_out, const Task& task) {
  const int64_t parts = o.problem.parts - 1;
  run(o, o.problem.pairs() * parts, [&](const LinearAttentionProblem& p, int64_t i, float* scratch) {
    const int64_t part = i % parts;
    task(p, i / parts * p.parts + part + (part >= left_out ? 1 : 0), scratch);
  });
}

at::Tensor states(const Operands& o, int64_t each) {
  const auto& p = o.problem;
  return at::empty({p.batch, p.heads, each, p.key_dim, p.value_dim}, o.q.options().dtype(at::kFloat));
}

}  // namespace

const LinearAttentionTiles& linear_attention_tiles(Isa isa) {
#ifdef INGOT_X86_ISAS
  if (isa == Isa::avx512) return avx512::linear_attention_tiles;
  if (isa == Isa::avx2) return avx2::linear_attention_tiles;
#endif
  static_cast<void>(isa);
  return portable::linear_attention_tiles;
}

bool takes_linear_attention(const LinearAttentionInputs& in) {
  return takes(in.q) && in.q.size(3) <= kLinearLargestDim && in.v.size(3) <= kLinearLargestDim;
}

bool takes_linear_attention_states(const LinearAttentionInputs& in) { return takes_linear_attention(in) && !in.beta.defined(); }

LinearAttentionOutput linear_attention_forward(const LinearAttentionInputs& in, const at::Tensor& initial_state,
                                               const LinearAttentionTiles& tiles) {
  Operands o(in, tiles);
  auto& p = o.problem;
  LinearAttentionOutput result{at::empty(in.v.sizes(), in.v.options().memory_format(at::MemoryFormat::Contiguous)), states(o, 1).squeeze(2),
                               states(o, p.segments())};
  p.out = rows(result.out);
  p.states = result.saved.mutable_data_ptr<float>();
  p.final_state = result.final_state.mutable_data_ptr<float>();
  device::counted(o.name.c_str(), {in.q, in.k, in.v, o.gate, o.beta, initial_state}, {result.out, result.final_state, result.saved},
                  o.flops());
  if (initial_state.defined()) result.saved.select(2, 0).copy_(initial_state);
  else result.saved.select(2, 0).zero_();
  if (p.parts > 1) {
    run_but(o, p.parts - 1, o.kernel.part_state);
    for (int64_t pair = 0; pair < p.pairs(); ++pair)
      for (int64_t part = 1; part < p.parts; ++part)
        o.add(p.state(pair, p.first_segment(part)), p.state(pair, p.first_segment(part - 1)), pair, part - 1);
  }
  run(o, o.kernel.forward);
  return result;
}

at::Tensor linear_attention_state(const LinearAttentionInputs& in, const LinearAttentionTiles& tiles) {
  Operands o(in, tiles);
  auto& p = o.problem;
  auto made = states(o, p.parts);
  device::counted("linear_attention_state", {in.k, in.v, o.gate}, {made}, o.flops() / 2);
  p.made = made.mutable_data_ptr<float>();
  run(o, o.kernel.part_state);
  for (int64_t pair = 0; pair < p.pairs(); ++pair)
    for (int64_t part = 1; part < p.parts; ++part)
      o.add(p.made_by(pair * p.parts + part), p.made_by(pair * p.parts + part - 1), pair, part);
  return made.select(2, p.parts - 1).contiguous();
}

at::Tensor linear_attention_state_gradient(const at::Tensor& grad_out_in, const LinearAttentionInputs& in,
                                           const LinearAttentionTiles& tiles) {
  Operands o(in, tiles);
  auto& p = o.problem;
  const auto grad_out = with_dense_dim(grad_out_in);
  auto made = states(o, p.parts);
  device::counted("linear_attention_state_gradient", {grad_out, in.q, o.gate}, {made}, o.flops() / 2);
  p.grad_out = rows(grad_out);
  p.made = made.mutable_data_ptr<float>();
  run(o, o.kernel.part_gradient);
  for (int64_t pair = 0; pair < p.pairs(); ++pair)
    for (int64_t part = p.parts - 1; part-- > 0;) o.add(p.made_by(pair * p.parts + part), p.made_by(pair * p.parts + part + 1), pair, part);
  return made.select(2, 0).contiguous();
}

void add_linear_attention_of_state(const at::Tensor& out, const LinearAttentionInputs& in, const at::Tensor& initial_state,
                                   const LinearAttentionTiles& tiles) {
  Operands o(in, tiles);
  auto& p = o.problem;
  auto before = states(o, p.segments());
  p.out = rows(out);
  p.states = before.mutable_data_ptr<float>();
  before.select(2, 0).copy_(initial_state);
  device::counted("linear_attention_of_state", {in.q, in.k, o.gate, initial_state, out}, {out}, o.flops() / 2);
  for (int64_t pair = 0; pair < p.pairs(); ++pair)
    for (int64_t part = 1; part < p.parts; ++part) {
      auto* const state = p.state(pair, p.first_segment(part));
      if (!o.is_counted) std::fill_n(state, p.state_size(), 0.0F);
      o.add(state, p.state(pair, p.first_segment(part - 1)), pair, part - 1);
    }
  run(o, o.kernel.add_of_state);
}

LinearAttentionGradients linear_attention_backward(const at::Tensor& grad_out_in, const at::Tensor& grad_final_state,
                                                   const LinearAttentionInputs& in, const at::Tensor& saved,
                                                   const LinearAttentionTiles& tiles) {
  Operands o(in, tiles);
  auto& p = o.problem;
  const auto grad_out = with_dense_dim(grad_out_in);
  const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options().memory_format(at::MemoryFormat::Contiguous)); };
  LinearAttentionGradients grads{like(in.q), like(in.k), like(in.v), {}, {}, states(o, 1).squeeze(2)};
  const auto grad_states = states(o, p.parts);
  const bool has_gates = in.log_gate.defined() && in.log_gate.dim() > 1, by_channel = is_by_channel(in);
  const auto by_head = [&](bool wanted) { return wanted ? at::empty({p.batch, p.heads, p.seq}, grad_states.options()) : at::Tensor(); };
  const auto grad_gate = by_channel ? at::empty(in.log_gate.sizes(), grad_states.options()) : by_head(has_gates),
             grad_beta = by_head(in.beta.defined());
  const auto to_write = [](const at::Tensor& x) { return x.defined() ? x.mutable_data_ptr<float>() : nullptr; };
  p.grad_out = rows(grad_out), p.grad_q = rows(grads.q), p.grad_k = rows(grads.k), p.grad_v = rows(grads.v);
  p.states = saved.mutable_data_ptr<float>();
  p.grad_states = grad_states.mutable_data_ptr<float>();
  p.grad_initial = grads.initial_state.mutable_data_ptr<float>();
  if (by_channel) p.grad_channel_gate = rows(grad_gate);
  else p.grad_gate = to_write(grad_gate);
  p.grad_beta = to_write(grad_beta);
  device::counted((o.name + ".backward").c_str(), {grad_out, in.q, in.k, in.v, o.gate, o.beta, saved, grad_final_state},
                  {grads.q, grads.k, grads.v, grad_gate, grad_beta, grads.initial_state}, 2 * o.flops());
  if (grad_final_state.defined()) grad_states.select(2, p.parts - 1).copy_(grad_final_state);
  else grad_states.select(2, p.parts - 1).zero_();
  if (p.parts > 1) {
    run_but(o, 0, o.kernel.part_gradient);
    for (int64_t pair = 0; pair < p.pairs(); ++pair)
      for (int64_t part = p.parts - 1; part-- > 0;) o.add(p.grad_state(pair, part), p.grad_state(pair, part + 1), pair, part + 1);
  }
  run(o, o.kernel.backward);
  const auto as_given = [](const at::Tensor& grad, const at::Tensor& of) { return grad.transpose(1, 2).to(of.scalar_type()).contiguous(); };
  if (has_gates) grads.log_gate = by_channel ? grad_gate.to(in.log_gate.scalar_type()) : as_given(grad_gate, in.log_gate);
  if (in.beta.defined()) grads.beta = as_given(grad_beta, in.beta);
  return grads;
}

}  // namespace ingot::kernels::cpu

int64_t ingot::kernels::linear_attention_segments(int64_t seq, bool by_channel) {
  cpu::LinearAttentionProblem p{};
  p.seq = seq, p.chunk = by_channel ? cpu::kLinearChannelsChunk : cpu::kLinearChunk;
  return p.segments();
}
