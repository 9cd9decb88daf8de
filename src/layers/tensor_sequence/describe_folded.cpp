#include "layers/tensor_sequence/describe_folded.h"

#include <algorithm>

#include "kernels/attention.h"
#include "layers/head.h"

namespace ingot::layers {
namespace {

// Most that a ring holds at a time of parts, of their gradients, and of what is made while one is here. The own part's gradient waits
// for what the others add; of the rest the last one's leaves, what comes to it arrives, and the next is made. A new buffer is there
// before the ones behind it are gone.
int64_t ring_bytes(int ranks, bool copies_own_part, int64_t part_bytes, int64_t gradient_bytes, int64_t visit_bytes) {
  int64_t most = 0;
  for (int step = 0; step < ranks; ++step) {
    const int64_t parts = (step > 0 || copies_own_part ? 1 : 0) + (step + 1 < ranks ? 1 : 0);
    const int64_t gradients = step < 2 ? step + 1 : 4, gradients_after = step == 0 ? 1 : gradients + 1;
    most = std::max(most, parts * part_bytes + std::max(gradients * gradient_bytes + visit_bytes, gradients_after * gradient_bytes));
  }
  return most;
}

// Outputs add up in the wide type and are narrowed at the end: what that takes beside the narrow one that counts as the output, with
// `visits_bytes` at most before.
int64_t with_wide_sum(const Workload& work, ActivationId out, int64_t visits_bytes) {
  if (work.element_bytes() == work.wide_bytes()) return visits_bytes;
  const auto& sum = work.activation(out);
  return std::max(visits_bytes + sum.rows * sum.width * (work.wide_bytes() - work.element_bytes()),
                  sum.rows * sum.width * work.wide_bytes());
}

// A product of narrow operands [rows, inner] and [inner, cols] that is added to wide ones goes through wide copies of both.
int64_t widened_bytes(const Workload& work, int64_t rows, int64_t inner, int64_t cols) {
  return work.element_bytes() < work.wide_bytes() ? work.wide_bytes() * inner * (rows + cols) : 0;
}

// One visit of attention: sizes in bytes.
struct Visit {
  int64_t weights;             // of all parts that it sees
  int64_t projected;           // q, k and v of the own tokens
  int64_t queries;             // q alone
  int64_t own_keys, all_keys;  // keys and values of all its kv heads, of the own tokens and of whole rows
  int64_t own_bucket, bucket;  // of the kv heads that are gathered at a time
  int64_t sums;                // of the bucket's gradients
  int64_t buckets;
};

// `kernel_first` and `kernel_last`: what the kernel takes for the first queries of a visit, who see fewer keys, and for the last ones.
//
// Two visits overlap: until the first queries of one have attended, the one before is not finished, whose last keys are still there; and
// while its last ones attend, the next is projected and its first keys are gathered.
int64_t forward_bytes(const Visit& v, int64_t kernel_first, int64_t kernel_last, bool has_others, const ProjectionSize& projections,
                      int64_t finish_bytes) {
  const int64_t arriving = v.own_bucket + v.bucket, other = has_others ? v.bucket : 0;
  const int64_t putting_in_order = other + arriving + v.bucket;
  const int64_t first = other + v.bucket + (v.buckets > 1 ? arriving : 0) + std::max(kernel_first, finish_bytes);
  const int64_t last = v.bucket + (v.buckets > 1 || has_others ? arriving : 0) + kernel_last;
  return (has_others ? 2 : 1) * (v.weights + v.projected) + std::max({putting_in_order, first, last, other + projections.forward_bytes});
}

// A bucket's gradients of keys and values are added up wide while the kernel makes more; when they are complete they wait, by rank, for
// the rest of their visit and until it is finished.
int64_t backward_bytes(const Visit& v, int64_t kernel_first, int64_t kernel_last, bool has_others, const ProjectionSize& projections,
                       int64_t finish_bytes) {
  const int64_t arriving = v.own_bucket + v.bucket, scattered = v.own_keys + v.all_keys;
  const int64_t visit = v.weights + v.projected + projections.kept_bytes, grads = 2 * v.queries;  // of its outputs and queries
  const int64_t here = v.bucket + v.sums, next_bucket = v.buckets > 1 ? arriving : 0;
  const int64_t last = here + scattered - scattered / v.buckets + kernel_last;
  if (!has_others) return visit + grads + std::max(last, finish_bytes);
  const int64_t first = here + next_bucket + std::max(v.bucket + scattered + kernel_first, finish_bytes);
  return 2 * (visit + grads) + std::max(first, std::max(last + arriving, here + projections.forward_bytes) - grads);
}

}  // namespace

int64_t folded_visits(int64_t kv_heads, const TensorSequenceAxis& axis) { return std::min<int64_t>(axis.size, kv_heads); }

void describe_folded_attention(Workload& work, ActivationId x, ActivationId out, const FoldedAttention& layer, const PartSize& part,
                               const ProjectionSize& projections, const SequenceAxis& tokens, const TensorSequenceAxis& axis) {
  const int64_t ranks = axis.size, visits = folded_visits(layer.kv_heads, axis), owners = ranks / visits;
  const int64_t heads = layer.heads / visits, kv_heads = layer.kv_heads / visits, d = layer.head_dim;
  const int64_t buckets = std::clamp<int64_t>(axis.head_buckets, 1, kv_heads), bucket_heads = (kv_heads + buckets - 1) / buckets;
  const int64_t count = work.tokens(), row = work.seq() * ranks, e = work.element_bytes(), w = work.wide_bytes();
  const int64_t hidden = work.activation(out).width, own_width = layer.heads / ranks * d;
  const Visit visit{.weights = owners * part.bytes,
                    .projected = (count + projections.halo_rows) * (heads + 2 * kv_heads) * d * e,
                    .queries = count * heads * d * e,
                    .own_keys = 2 * count * kv_heads * d * e,
                    .all_keys = 2 * count * ranks * kv_heads * d * e,
                    .own_bucket = 2 * count * bucket_heads * d * e,
                    .bucket = 2 * count * ranks * bucket_heads * d * e,
                    .sums = 2 * count * ranks * bucket_heads * d * w,
                    .buckets = buckets};
  // Half of a chunk's queries attend at a time. The first of them see most on the last rank, the last ones on the rank with the row's end.
  const int64_t chunk = work.seq() / tokens.chunks(), queries = chunk - chunk / 2, query_heads = bucket_heads * (heads / kv_heads);
  const int64_t piece = work.batch() * queries * query_heads * d * e, first_keys = (ranks - 1) * chunk + chunk / 2;
  const auto scratch = [&](int64_t keys) { return kernels::attention_scratch(work.batch(), queries, query_heads, bucket_heads, d, keys); };
  const auto first = scratch(first_keys), last = scratch(row);
  const bool has_others = visits > 1;

  Operation op{.kind = Operation::Kind::attention, .name = "attention", .inputs = {x}, .outputs = {out}, .element_bytes = e};
  op.saved = {x, work.narrow(layer.heads * d), work.wide(layer.heads)};  // attention's output and its log-sum-exp
  op.batch = work.batch();
  op.seq = row;
  op.window = layer.window;
  op.heads = layer.heads;
  op.kv_heads = layer.kv_heads;
  op.head_dim = d;
  op.flops = attention_cost(op.batch, row, op.window, op.heads, op.kv_heads, d, e).flops / static_cast<double>(ranks);
  const int64_t widened = widened_bytes(work, count, own_width, hidden);
  op.forward_scratch_bytes = with_wide_sum(
      work, out, forward_bytes(visit, first.forward_bytes + piece, last.forward_bytes + piece, has_others, projections, widened));
  // Of the weights: of the visits at hand, of the one whose gradients are leaving, and the own ones, which are added at the end.
  const int64_t gradients = (std::min<int64_t>(visits, 3) * owners + (visits > 3 ? 1 : 0)) * part.elements * w;
  const int64_t grad_x = count * hidden * e;
  // Gradients of keys and values are taken out of what came from the other ranks, then go through the projections.
  const int64_t finish = visit.own_keys + std::max(visit.own_keys + visit.all_keys,
                                                   projections.backward_bytes + grad_x + widened_bytes(work, own_width, count, hidden));
  const int64_t backward = backward_bytes(visit, first.backward_bytes + piece + visit.bucket * first_keys / row,
                                          last.backward_bytes + piece + visit.bucket, has_others, projections, finish);
  op.backward_scratch_bytes = with_wide_sum(work, x, gradients + backward);
  work.add(std::move(op));
  work.inner_linear(own_width, hidden, ranks);
}

void describe_folded_mlp(Workload& work, ActivationId x, ActivationId out, int64_t ffn, bool biased, const TensorSequenceAxis& axis) {
  const int64_t hidden = work.activation(x).width, own = ffn / axis.size, count = work.tokens(), e = work.element_bytes(),
                w = work.wide_bytes();
  const PartSize part{3 * own * hidden + (biased ? 2 * own : 0), 3 * own * hidden * e + (biased ? 2 * own * w : 0)};
  const int64_t middle = count * own * e, gate_up = 2 * middle, sum_with_bias = biased ? 2 * count * own * w : 0;

  Operation op{.kind = Operation::Kind::kernel, .name = "folded_mlp", .inputs = {x}, .outputs = {out}, .saved = {x}, .element_bytes = e};
  const int64_t forward = middle + std::max(gate_up + sum_with_bias, widened_bytes(work, count, own, hidden));
  op.forward_scratch_bytes = with_wide_sum(work, out, ring_bytes(axis.size, true, part.bytes, 0, forward));
  // `middle` and its gradient stay until the visit is over.
  const int64_t through_swiglu = 2 * gate_up, through_linear = gate_up + count * hidden * e + widened_bytes(work, own, count, hidden);
  const int64_t backward = 2 * middle + sum_with_bias + std::max(through_swiglu, through_linear);
  op.backward_scratch_bytes = with_wide_sum(work, x, ring_bytes(axis.size, true, part.bytes, part.elements * w, backward));
  work.add(std::move(op));
  for (int i = 0; i < 2; ++i) work.inner_linear(hidden, own, axis.size).repeated_in_backward = true;  // gate and up
  work.inner_kernel("swiglu", count, own, axis.size).repeated_in_backward = true;
  work.inner_linear(own, hidden, axis.size);
}

void describe_folded_embedding(Workload& work, ActivationId out, int64_t vocab, const TensorSequenceAxis& axis) {
  const int64_t width = work.activation(out).width, part = vocab / axis.size * width, found = work.tokens() / axis.size * width;
  auto& op = work.kernel("embedding", {}, {out}, {work.indices(work.tokens())});
  op.forward_scratch_bytes = ring_bytes(axis.size, false, part * work.element_bytes(), 0, 2 * found * work.wide_bytes());
  op.backward_scratch_bytes = ring_bytes(axis.size, false, 0, part * work.wide_bytes(), found * work.wide_bytes());
}

void describe_folded_head(Workload& work, ActivationId hidden, int64_t vocab, const TensorSequenceAxis& axis) {
  const int64_t width = work.activation(hidden).width, own = vocab / axis.size, count = work.tokens(), e = work.element_bytes(),
                w = work.wide_bytes();
  const int64_t chunk = std::min(head_chunk_rows(count, own, work.on_gpu()), count), chunks = (count + chunk - 1) / chunk;
  const auto grad_hidden = work.narrow(width);
  // Logits, and their gradient narrowed, of one chunk and one part.
  const int64_t logits = chunk * own * (w + (e < w ? e : 0)), statistics = axis.size * count * 3 * w;
  const int64_t visit = logits + std::max(widened_bytes(work, chunk, own, width), widened_bytes(work, own, chunk, width));
  Operation op{.kind = Operation::Kind::product,
               .name = "head",
               .inputs = {hidden},
               .outputs = {grad_hidden},
               .saved = {grad_hidden},
               .element_bytes = e};
  op.rows = (count + chunks - 1) / chunks;
  op.in = width;
  op.out = own;
  op.count = chunks * axis.size;
  op.repeated_in_backward = true;  // the statistics of all parts come first
  const auto cost = linear_cost(count, width, vocab, e, false);
  op.flops = cost.flops;
  op.weight_bytes = cost.weight_bytes;
  op.forward_scratch_bytes =
      with_wide_sum(work, grad_hidden, statistics + ring_bytes(axis.size, false, own * width * e, own * width * w, visit));
  work.add(std::move(op));
  auto& softmax = work.kernel("cross_entropy", {}, {work.wide(1)}, {}, count, own);
  softmax.count = 2 * axis.size;
  softmax.scratch_moved_bytes = static_cast<double>(count * own) * static_cast<double>(2 * w + (e < w ? w + e : 0));
}

}  // namespace ingot::layers
