// Lays the work of the linear-attention kernel out: operands, work areas, and how rows are cut into parts where there are few heads.
#include "kernels/cpu/linear_attention.h"

#include "kernels/cpu/rows_parallel.h"
#include "kernels/reference/linear_attention.h"

namespace ingot::kernels::cpu {
namespace {

// Rows are cut until there are this many tasks, where they have as many segments: enough for the threads of most machines.
constexpr int64_t kTasks = 16;

at::Tensor with_dense_dim(const at::Tensor& x) { return x.size(3) <= 1 || x.stride(3) == 1 ? x : x.contiguous(); }

TokenRows rows(const at::Tensor& x) { return {x.data_ptr(), x.stride(0), x.stride(1), x.stride(2)}; }

// Operands as the kernel reads them, alive while it runs.
struct Operands {
  at::Tensor q, k, v, gate;
  LinearAttentionProblem problem{};

  explicit Operands(const LinearAttentionInputs& in) : q(with_dense_dim(in.q)), k(with_dense_dim(in.k)), v(with_dense_dim(in.v)) {
    auto& p = problem;
    p.batch = q.size(0), p.seq = q.size(1), p.heads = q.size(2), p.key_dim = q.size(3), p.value_dim = v.size(3);
    p.is_bf16 = q.scalar_type() == at::kBFloat16;
    p.q = rows(q), p.k = rows(k), p.v = rows(v);
    if (in.log_gate.defined() || in.is_start.defined()) gate = reference::gates_by_head(in).squeeze(-1).contiguous();
    p.gate = floats(gate);
    p.same_gates = !in.is_start.defined() && (!in.log_gate.defined() || in.log_gate.dim() == 1);
    p.parts = std::clamp<int64_t>(kTasks / p.pairs(), 1, p.segments());
  }

  // exp of the sum of a part's gates.
  float decay(int64_t pair, int64_t part) const {
    const auto& p = problem;
    if (p.gate == nullptr) return 1;
    const int64_t begin = p.first_chunk(p.first_segment(part)) * kLinearChunk;
    const int64_t end = std::min(p.seq, p.first_chunk(p.first_segment(part + 1)) * kLinearChunk);
    double sum = 0;
    for (int64_t t = begin; t < end; ++t) sum += p.gate[pair * p.seq + t];
    return static_cast<float>(std::exp(sum));
  }

  // to += decay * from, over a state.
  void add(float* to, const float* from, float decay) const {
    for (int64_t i = 0; i < problem.state_size(); ++i) to[i] += decay * from[i];
  }
};

template <class Task>
void run(const LinearAttentionProblem& p, int64_t tasks, const LinearAttentionTiles& tiles, const Task& task) {
  const int64_t scratch_size = tiles.scratch(p);
  const auto area = at::empty({workers_for(tasks) * scratch_size}, at::kFloat);
  auto* const scratch = area.mutable_data_ptr<float>();
  parallel_tasks(tasks, [&](int64_t i, int64_t worker) { task(p, i, scratch + worker * scratch_size); });
}

// The tasks of all parts of a row but one.
template <class Task>
void run_but(const LinearAttentionProblem& p, int64_t left_out, const LinearAttentionTiles& tiles, const Task& task) {
  const int64_t parts = p.parts - 1;
  run(p, p.pairs() * parts, tiles, [&](const LinearAttentionProblem& problem, int64_t i, float* scratch) {
    const int64_t part = i % parts;
    task(problem, i / parts * p.parts + part + (part >= left_out ? 1 : 0), scratch);
  });
}

at::Tensor states(const LinearAttentionProblem& p, int64_t each) {
  return at::empty({p.batch, p.heads, each, p.key_dim, p.value_dim}, at::kFloat);
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
  return takes(in.q) && !in.beta.defined() && !(in.log_gate.defined() && in.log_gate.dim() == 4) && in.q.size(3) <= kLinearLargestDim &&
         in.v.size(3) <= kLinearLargestDim;
}

LinearAttentionOutput linear_attention_forward(const LinearAttentionInputs& in, const at::Tensor& initial_state,
                                               const LinearAttentionTiles& tiles) {
  Operands o(in);
  auto& p = o.problem;
  LinearAttentionOutput result{at::empty(in.v.sizes(), in.v.options().memory_format(at::MemoryFormat::Contiguous)), states(p, 1).squeeze(2),
                               states(p, p.segments())};
  p.out = rows(result.out);
  p.states = result.saved.mutable_data_ptr<float>();
  p.final_state = result.final_state.mutable_data_ptr<float>();
  if (initial_state.defined()) result.saved.select(2, 0).copy_(initial_state);
  else result.saved.select(2, 0).zero_();
  if (p.parts > 1) {
    run_but(p, p.parts - 1, tiles, tiles.part_state);
    for (int64_t pair = 0; pair < p.pairs(); ++pair)
      for (int64_t part = 1; part < p.parts; ++part)
        o.add(p.state(pair, p.first_segment(part)), p.state(pair, p.first_segment(part - 1)), o.decay(pair, part - 1));
  }
  run(p, p.pairs() * p.parts, tiles, tiles.forward);
  return result;
}

at::Tensor linear_attention_state(const LinearAttentionInputs& in, const LinearAttentionTiles& tiles) {
  Operands o(in);
  auto& p = o.problem;
  auto made = states(p, p.parts);
  p.made = made.mutable_data_ptr<float>();
  run(p, p.pairs() * p.parts, tiles, tiles.part_state);
  for (int64_t pair = 0; pair < p.pairs(); ++pair)
    for (int64_t part = 1; part < p.parts; ++part)
      o.add(p.made_by(pair * p.parts + part), p.made_by(pair * p.parts + part - 1), o.decay(pair, part));
  return made.select(2, p.parts - 1).contiguous();
}

at::Tensor linear_attention_state_gradient(const at::Tensor& grad_out_in, const LinearAttentionInputs& in,
                                           const LinearAttentionTiles& tiles) {
  Operands o(in);
  auto& p = o.problem;
  const auto grad_out = with_dense_dim(grad_out_in);
  auto made = states(p, p.parts);
  p.grad_out = rows(grad_out);
  p.made = made.mutable_data_ptr<float>();
  run(p, p.pairs() * p.parts, tiles, tiles.part_gradient);
  for (int64_t pair = 0; pair < p.pairs(); ++pair)
    for (int64_t part = p.parts - 1; part-- > 0;)
      o.add(p.made_by(pair * p.parts + part), p.made_by(pair * p.parts + part + 1), o.decay(pair, part));
  return made.select(2, 0).contiguous();
}

void add_linear_attention_of_state(const at::Tensor& out, const LinearAttentionInputs& in, const at::Tensor& initial_state,
                                   const LinearAttentionTiles& tiles) {
  Operands o(in);
  auto& p = o.problem;
  auto before = states(p, p.segments());
  p.out = rows(out);
  p.states = before.mutable_data_ptr<float>();
  before.select(2, 0).copy_(initial_state);
  for (int64_t pair = 0; pair < p.pairs(); ++pair)
    for (int64_t part = 1; part < p.parts; ++part) {
      auto* const state = p.state(pair, p.first_segment(part));
      std::fill_n(state, p.state_size(), 0.0F);
      o.add(state, p.state(pair, p.first_segment(part - 1)), o.decay(pair, part - 1));
    }
  run(p, p.pairs() * p.parts, tiles, tiles.add_of_state);
}

LinearAttentionGradients linear_attention_backward(const at::Tensor& grad_out_in, const at::Tensor& grad_final_state,
                                                   const LinearAttentionInputs& in, const at::Tensor& saved,
                                                   const LinearAttentionTiles& tiles) {
  Operands o(in);
  auto& p = o.problem;
  const auto grad_out = with_dense_dim(grad_out_in);
  const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options().memory_format(at::MemoryFormat::Contiguous)); };
  LinearAttentionGradients grads{like(in.q), like(in.k), like(in.v), {}, {}, states(p, 1).squeeze(2)};
  const auto grad_states = states(p, p.parts);
  const bool has_gate = in.log_gate.defined() && in.log_gate.dim() == 3;
  const auto grad_gate = has_gate ? at::empty({p.batch, p.heads, p.seq}, at::kFloat) : at::Tensor();
  p.grad_out = rows(grad_out), p.grad_q = rows(grads.q), p.grad_k = rows(grads.k), p.grad_v = rows(grads.v);
  p.states = saved.mutable_data_ptr<float>();
  p.grad_states = grad_states.mutable_data_ptr<float>();
  p.grad_initial = grads.initial_state.mutable_data_ptr<float>();
  p.grad_gate = has_gate ? grad_gate.mutable_data_ptr<float>() : nullptr;
  if (grad_final_state.defined()) grad_states.select(2, p.parts - 1).copy_(grad_final_state);
  else grad_states.select(2, p.parts - 1).zero_();
  if (p.parts > 1) {
    run_but(p, 0, tiles, tiles.part_gradient);
    for (int64_t pair = 0; pair < p.pairs(); ++pair)
      for (int64_t part = p.parts - 1; part-- > 0;) o.add(p.grad_state(pair, part), p.grad_state(pair, part + 1), o.decay(pair, part + 1));
  }
  run(p, p.pairs() * p.parts, tiles, tiles.backward);
  if (has_gate) grads.log_gate = grad_gate.transpose(1, 2).to(in.log_gate.scalar_type()).contiguous();
  return grads;
}

}  // namespace ingot::kernels::cpu
