// Linear attention by chunks of tokens. Algorithm: inside a chunk scores A = (q k^T) decayed between the two tokens, masked, times
// v; across chunks one state each. The delta rule in its WY form (Yang et al. 2024, arXiv 2406.06484 §3, with gates 2412.06464):
// with L = beta (k k^T) decayed, strictly below the diagonal, the values written are U = (I + L)^-1 beta (v - decayed k S), and
// the rest is as without it, for U in place of v. With a gate per channel (Kimi Linear, arXiv 2510.26692 §3) decays stand inside k k^T as
// they do inside q k^T.
//
// Decays between tokens i >= j are exponentials of sums of gates, never quotients or differences: with a gate per head the
// sums are made for every pair; with a gate per channel by halves, quarters, … of a chunk, where the pairs between a left and
// a right half meet at the border between the two.
//
// Limit: about 10 passes over [seq, heads, chunk] and [seq, heads, dim], and a loop over chunks for the states alone.
#include <vector>

#include "kernels/reference/linear_attention.h"

namespace ingot::kernels::reference {
namespace {

at::Tensor transposed(const at::Tensor& x) { return x.transpose(-1, -2); }

// A right and a left half of 2 * half tokens each, and the decays of their tokens from and to the border between them.
struct Halves {
  int64_t half;
  at::Tensor from_border, to_border;  // [chunks, pairs, half, key_dim]
  at::Tensor right(const at::Tensor& x) const { return x.unflatten(1, {-1, 2, half}).select(2, 1); }
  at::Tensor left(const at::Tensor& x) const { return x.unflatten(1, {-1, 2, half}).select(2, 0); }
  /// Of a square [chunks, length, length] the blocks of right by left tokens, as a view [chunks, pairs, half, half].
  at::Tensor block(const at::Tensor& square) const {
    const int64_t pairs = square.size(1) / (2 * half);
    const auto diagonal = square.view({-1, pairs, 2 * half, pairs, 2 * half}).diagonal(0, 1, 3);  // [chunks, 2 half, 2 half, pairs]
    return diagonal.narrow(1, half, half).narrow(2, 0, half).permute({0, 3, 1, 2});
  }
};

// gate [chunks, length, key_dim]. Sums grow by halves: `up_to` within the half, this token included, and `behind` it.
template <class Visit>
void for_each_halving(const at::Tensor& gate, const Visit& visit) {
  auto up_to = gate.unsqueeze(2), behind = at::zeros_like(up_to);  // [chunks, pieces, half, key_dim]
  for (int64_t half = 1; half < gate.size(1); half *= 2) {
    const auto u = up_to.unflatten(1, {-1, 2}), b = behind.unflatten(1, {-1, 2});
    const auto left_up = u.select(2, 0), right_up = u.select(2, 1), left_behind = b.select(2, 0), right_behind = b.select(2, 1);
    visit(Halves{half, right_up.exp(), left_behind.exp()});
    up_to = device::cat({left_up, left_up.narrow(2, half - 1, 1) + right_up}, 2);
    behind = device::cat({left_behind + right_up.narrow(2, half - 1, 1), right_behind}, 2);
  }
}

// All chunks of all heads side by side, the last one of a sequence filled up with tokens that do nothing.
struct Chunks {
  int64_t pairs, count, length;          // batch * heads, chunks of each, tokens of a chunk
  at::Tensor q, k, v;                    // [pairs * count, length, dim]
  at::Tensor gate;                       // [pairs * count, length, 1 or key_dim]
  at::Tensor beta;                       // [pairs * count, length, 1], or undefined
  at::Tensor from_start, to_end, whole;  // decays from the chunk's start to each token (its own gate included), from there to the end,
                                         // and of the whole chunk [pairs * count, 1 or key_dim, 1]
  at::Tensor decay;                      // with a gate per head: [pairs * count, length, length], 0 above the diagonal

  Chunks(const LinearAttentionInputs& in, int64_t longest) {
    const int64_t seq = in.q.size(1);
    pairs = in.q.size(0) * in.q.size(2);
    length = 1;
    while (length < longest && length < seq) length *= 2;
    count = (seq + length - 1) / length;
    q = cut(heads_first(in.q));
    k = cut(heads_first(in.k));
    v = cut(heads_first(in.v));
    gate = cut(gates_by_head(in));
    if (in.beta.defined()) beta = cut(heads_first(in.beta.unsqueeze(-1)));
    const auto up_to = gate.cumsum(1);
    from_start = up_to.exp();
    to_end = sum_behind(gate, 1).exp();
    whole = transposed(from_start.narrow(1, length - 1, 1));
    if (gate.size(2) > 1) return;
    const auto below = at::ones({length, length}, gate.options().dtype(at::kBool)).tril(-1);
    decay = at::where(below, gate, at::zeros({}, gate.options())).cumsum(1).exp().tril();
  }

  /// [batch, heads, seq, dim] -> [pairs * count, length, dim]
  at::Tensor cut(const at::Tensor& x) const {
    return at::constant_pad_nd(x.flatten(0, 1), {0, 0, 0, count * length - x.size(2)}).reshape({pairs * count, length, x.size(3)});
  }
  at::Tensor by_chunk(const at::Tensor& x) const { return x.unflatten(0, {pairs, count}); }

  /// [pairs * count, length, dim] -> [batch, seq, heads, dim] like `of` but for its last dim.
  at::Tensor joined(const at::Tensor& x, const at::Tensor& of) const {
    const auto tokens = by_chunk(x).flatten(1, 2).narrow(1, 0, of.size(1)).unflatten(0, {of.size(0), of.size(2)});
    return tokens.transpose(1, 2).to(of.scalar_type()).contiguous();
  }

  /// (x k^T) decayed, 0 above the diagonal; x: q or k.
  at::Tensor with_keys(const at::Tensor& x) const {
    if (decay.defined()) return at::matmul(x, transposed(k)).mul_(decay);
    auto all = at::zeros({q.size(0), length, length}, q.options());
    all.diagonal(0, 1, 2).copy_((x * k).sum(-1));
    for_each_halving(
        gate, [&](const Halves& h) { h.block(all).copy_(at::matmul(h.right(x) * h.from_border, transposed(h.left(k) * h.to_border))); });
    return all;
  }
  at::Tensor scores() const { return with_keys(q); }
};

// The sum over all pairs of a later and an earlier token, between which the gate of token t lies: [chunks, length, 1].
at::Tensor gate_gradient_of_pairs(const at::Tensor& pairs) {
  const auto earlier = at::constant_pad_nd(pairs.tril(-1), {1, -1}).cumsum(2);  // [later, t]: over tokens before t
  return earlier.tril().sum(1).unsqueeze(-1);
}

struct ProductGradients {
  at::Tensor x, k, gate;
};

// Of products = Chunks::with_keys(x). grad is 0 above the diagonal.
ProductGradients differentiate_products(const Chunks& c, const at::Tensor& x, const at::Tensor& products, const at::Tensor& grad) {
  if (c.decay.defined()) {
    const auto undecayed = grad * c.decay;
    return {at::matmul(undecayed, c.k), at::matmul(transposed(undecayed), x), gate_gradient_of_pairs(grad * products)};
  }
  const auto same = grad.diagonal(0, 1, 2).unsqueeze(-1);
  ProductGradients g{same * c.k, same * x, at::zeros_like(c.gate)};
  for_each_halving(c.gate, [&](const Halves& h) {
    const auto block = h.block(grad), later = h.right(x), k = h.left(c.k);
    const auto to_x = at::matmul(block, k * h.to_border) * h.from_border;
    const auto to_k = at::matmul(transposed(block), later * h.from_border) * h.to_border;
    h.right(g.x).add_(to_x);
    h.left(g.k).add_(to_k);
    h.right(g.gate).add_(sum_from(later * to_x, 2));
    h.left(g.gate).add_(sum_before(k * to_k, 2));
  });
  return g;
}

// The delta rule's system of a chunk.
struct Correction {
  at::Tensor products;               // (k k^T) decayed, below the diagonal
  at::Tensor system;                 // beta * products; the ones on the diagonal are implied
  at::Tensor of_values, of_decayed;  // (I + L)^-1 of beta v and of beta (decayed k)

  explicit Correction(const Chunks& c) {
    products = c.with_keys(c.k).tril(-1);
    system = c.beta * products;
    of_values = solve(c.beta * c.v);
    of_decayed = solve(c.beta * c.from_start * c.k);
  }
  at::Tensor solve(const at::Tensor& right) const {
    return at::linalg_solve_triangular(system, right, /*upper=*/false, /*left=*/true, /*unitriangular=*/true);
  }
  at::Tensor solve_transposed(const at::Tensor& right) const {
    return at::linalg_solve_triangular(transposed(system), right, /*upper=*/true, /*left=*/true, /*unitriangular=*/true);
  }
};

at::Tensor first_state(const Chunks& c, const at::Tensor& initial_state) {
  if (!initial_state.defined()) return at::zeros({c.pairs, c.q.size(2), c.v.size(2)}, c.q.options());
  return initial_state.to(c.q.scalar_type()).flatten(0, 1);
}

struct States {
  at::Tensor before;   // [pairs * count, key_dim, value_dim], in front of each chunk
  at::Tensor last;     // [pairs, key_dim, value_dim]
  at::Tensor written;  // the values that each token writes: v, or U with the delta rule
};

States run_states(const Chunks& c, const Correction* correction, at::Tensor state) {
  const auto keys = transposed(c.by_chunk(c.k * c.to_end)), whole = c.by_chunk(c.whole);
  const auto values = c.by_chunk(correction ? correction->of_values : c.v);
  const auto decayed = correction ? c.by_chunk(correction->of_decayed) : at::Tensor();
  const auto added = correction ? at::Tensor() : at::matmul(keys, values);
  std::vector<at::Tensor> before, written;
  for (int64_t n = 0; n < c.count; ++n) {
    before.push_back(state);
    if (correction) written.push_back(values.select(1, n) - at::matmul(decayed.select(1, n), state));
    state = whole.select(1, n) * state + (correction ? at::matmul(keys.select(1, n), written.back()) : added.select(1, n));
  }
  return {at::stack(before, 1).flatten(0, 1), state, correction ? at::stack(written, 1).flatten(0, 1) : c.v};
}

struct StateGradients {
  at::Tensor behind;  // [pairs * count, key_dim, value_dim], of the state behind each chunk
  at::Tensor first;   // [pairs, key_dim, value_dim], of the initial state
};

// scores: only with the delta rule.
StateGradients run_state_gradients(const Chunks& c, const Correction* correction, const at::Tensor& scores, const at::Tensor& grad_out,
                                   at::Tensor grad) {
  auto own = at::matmul(transposed(c.q * c.from_start), grad_out);
  if (correction) own = own - at::matmul(transposed(correction->of_decayed), at::matmul(transposed(scores), grad_out));
  own = c.by_chunk(own);
  const auto whole = c.by_chunk(c.whole), keys = c.by_chunk(c.k * c.to_end);
  const auto decayed = correction ? transposed(c.by_chunk(correction->of_decayed)) : at::Tensor();
  std::vector<at::Tensor> behind(static_cast<size_t>(c.count));
  for (int64_t n = c.count; n-- > 0;) {
    behind[static_cast<size_t>(n)] = grad;
    const auto here = grad;
    grad = whole.select(1, n) * here + own.select(1, n);
    if (correction) grad = grad - at::matmul(decayed.select(1, n), at::matmul(keys.select(1, n), here));
  }
  return {at::stack(behind, 1).flatten(0, 1), grad};
}

at::Tensor by_head(const at::Tensor& state, const LinearAttentionInputs& in) { return state.unflatten(0, {in.q.size(0), in.q.size(2)}); }

// Gradients of the inputs, chunk by chunk.
struct ChunkGradients {
  at::Tensor q, k, v, gate, beta;
};

// Of everything that token t reads from the state in front of its chunk (`reads`), writes to the one behind it (`writes`), and of
// the decay in between; each per channel or already summed.
at::Tensor gate_gradient_of_states(const at::Tensor& reads, const at::Tensor& writes, const at::Tensor& kept) {
  return sum_from(reads, 1) + sum_before(writes, 1) + kept;
}

// Adds what the delta rule's own use of k, beta and the state makes. grad_written: of U.
void add_correction(ChunkGradients& g, const Chunks& c, const Correction& correction, const States& states, const at::Tensor& grad_written,
                    at::Tensor& reads) {
  const auto decayed = c.from_start * c.k;
  const auto error = c.v - at::matmul(decayed, states.before);        // what beta multiplies
  const auto grad_right = correction.solve_transposed(grad_written);  // of the right side of the system
  const auto grad_error = c.beta * grad_right;
  const auto grad_system = -at::matmul(grad_right, transposed(states.written)).tril(-1);
  const auto of_products = differentiate_products(c, c.k, correction.products, c.beta * grad_system);
  const auto to_decayed = -at::matmul(grad_error, transposed(states.before)) * c.from_start;
  g.v = grad_error;
  g.beta = (grad_right * error).sum(-1, true) + (grad_system * correction.products).sum(-1, true);
  g.k = g.k + of_products.x + of_products.k + to_decayed;
  g.gate = g.gate + of_products.gate;
  reads = reads + c.k * to_decayed;
}

ChunkGradients differentiate(const Chunks& c, const Correction* correction, const States& states, const StateGradients& grads,
                             const at::Tensor& scores, const at::Tensor& grad_out) {
  const auto grad_written = at::matmul(transposed(scores), grad_out) + at::matmul(c.k * c.to_end, grads.behind);
  const auto grad_scores = at::matmul(grad_out, transposed(states.written)).tril();
  const auto within = differentiate_products(c, c.q, scores, grad_scores);
  const auto from_state = at::matmul(grad_out, transposed(states.before)) * c.from_start;
  const auto to_state = at::matmul(states.written, transposed(grads.behind)) * c.to_end;
  ChunkGradients g{within.x + from_state, within.k + to_state, grad_written, within.gate, {}};
  auto reads = c.q * from_state, writes = c.k * to_state, kept = transposed((c.whole * states.before * grads.behind).sum(-1, true));
  if (correction) add_correction(g, c, *correction, states, grad_written, reads);
  if (c.gate.size(2) == 1) {
    reads = reads.sum(-1, true);
    writes = writes.sum(-1, true);
    kept = kept.sum(-1, true);
  }
  g.gate = g.gate + gate_gradient_of_states(reads, writes, kept);
  return g;
}

// A gate of -inf, as at starts of documents, has the gradient 0 because everything that passes it is multiplied by exp(-inf).
at::Tensor gate_gradient(const Chunks& c, const at::Tensor& gradient, const at::Tensor& log_gate) {
  if (!log_gate.defined() || log_gate.dim() == 1) return {};
  if (log_gate.dim() == 4) return c.joined(gradient, log_gate);
  return c.joined(gradient, log_gate.unsqueeze(-1)).squeeze(-1);
}

std::unique_ptr<Correction> correction_of(const Chunks& c) { return c.beta.defined() ? std::make_unique<Correction>(c) : nullptr; }

}  // namespace

LinearAttentionOutput linear_attention_forward(const LinearAttentionInputs& in, const at::Tensor& initial_state, int64_t chunk) {
  const Chunks c(in, chunk);
  const auto correction = correction_of(c);
  const auto states = run_states(c, correction.get(), first_state(c, initial_state));
  const auto out = at::matmul(c.q * c.from_start, states.before) + at::matmul(c.scores(), states.written);
  return {c.joined(out, in.v), by_head(states.last, in), {}};
}

LinearAttentionGradients linear_attention_backward(const at::Tensor& grad_out_in, const at::Tensor& grad_final_state,
                                                   const LinearAttentionInputs& in, const at::Tensor& initial_state, int64_t chunk) {
  const Chunks c(in, chunk);
  const auto grad_out = c.cut(heads_first(grad_out_in));
  const auto correction = correction_of(c);
  const auto scores = c.scores();
  const auto states = run_states(c, correction.get(), first_state(c, initial_state));
  const auto grads = run_state_gradients(c, correction.get(), scores, grad_out, first_state(c, grad_final_state));
  const auto g = differentiate(c, correction.get(), states, grads, scores, grad_out);
  LinearAttentionGradients all{
      c.joined(g.q, in.q), c.joined(g.k, in.k), c.joined(g.v, in.v), gate_gradient(c, g.gate, in.log_gate), {}, {}};
  if (in.beta.defined()) all.beta = c.joined(g.beta, in.beta.unsqueeze(-1)).squeeze(-1);
  all.initial_state = by_head(grads.first, in);
  return all;
}

LinearAttentionMap delta_rule_map(const LinearAttentionInputs& in, int64_t chunk) {
  const Chunks c(in, chunk);
  const Correction correction(c);
  const auto keys = transposed(c.k * c.to_end);
  const auto identity = at::eye(c.q.size(2), c.q.options());
  const auto matrices = c.by_chunk(c.whole * identity - at::matmul(keys, correction.of_decayed));
  const auto added = c.by_chunk(at::matmul(keys, correction.of_values));
  auto matrix = matrices.select(1, 0), sum = added.select(1, 0);
  for (int64_t n = 1; n < c.count; ++n) {
    sum = at::matmul(matrices.select(1, n), sum) + added.select(1, n);
    matrix = at::matmul(matrices.select(1, n), matrix);
  }
  return {by_head(sum, in), {}, by_head(matrix, in)};
}

at::Tensor delta_rule_state_gradient(const at::Tensor& grad_out, const LinearAttentionInputs& in, int64_t chunk) {
  const Chunks c(in, chunk);
  const Correction correction(c);
  return by_head(run_state_gradients(c, &correction, c.scores(), c.cut(heads_first(grad_out)), first_state(c, {})).first, in);
}

}  // namespace ingot::kernels::reference
