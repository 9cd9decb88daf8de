// Lays the work of the attention kernel out: work areas, tasks, and how the backward pass is cut into parts.
#include "kernels/cpu/attention.h"

#include <limits>

#include "device/device.h"
#include "device/virtual_device.h"
#include "kernels/cpu/parallel.h"

namespace ingot::kernels::cpu {
namespace {

// Below this many queries per kv head packing the keys costs more than it saves.
constexpr int64_t kDecodeQueries = 8;
// The backward pass is cut into at least this many tasks where that is cheap: enough for the threads of most machines.
constexpr int64_t kBackwardTasks = 32;

AttentionRows rows(const at::Tensor& x) { return {x.data_ptr(), x.stride(0), x.stride(1), x.stride(2), x.size(3)}; }

at::Tensor floats(int64_t count, const at::Tensor& like) { return at::empty({count}, like.options().dtype(at::kFloat)); }

at::Tensor dense(const at::Tensor& x) { return x.defined() ? x.contiguous() : x; }

// The ends of the keys that queries see are to outlive the problem.
AttentionProblem describe(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ScoreRule& rule, const AttentionMask& mask,
                          const at::Tensor& visible_from, const at::Tensor& visible_until) {
  AttentionProblem p{};
  p.batch = q.size(0), p.q_len = q.size(1), p.heads = q.size(2), p.head_dim = q.size(3), p.value_dim = v.size(3);
  p.k_len = visible_until.defined() ? k.size(1) : std::clamp<int64_t>(mask.query_offset + p.q_len, 0, k.size(1));
  p.kv_heads = k.size(2), p.query_offset = mask.query_offset;
  p.visible_from = visible_from.defined() ? visible_from.const_data_ptr<int32_t>() : nullptr;
  p.visible_until = visible_until.defined() ? visible_until.const_data_ptr<int32_t>() : nullptr;
  p.scale = static_cast<float>(rule.scale), p.cap = static_cast<float>(rule.cap), p.is_bf16 = q.scalar_type() == at::kBFloat16;
  p.q = rows(q), p.k = rows(k), p.v = rows(v);
  return p;
}

// Room for the results, where the problem puts them.
AttentionOutput outputs(AttentionProblem& p, const at::Tensor& q) {
  AttentionOutput result{at::empty({p.batch, p.q_len, p.heads, p.value_dim}, q.options()),
                         at::empty({p.batch, p.heads, p.q_len}, q.options().dtype(at::kFloat))};
  p.out = rows(result.out);
  p.log_sum_exp = result.log_sum_exp.mutable_data_ptr<float>();
  return result;
}

// As when decoding, where a query is the last of the keys that it sees.
bool query_sees_itself(const AttentionProblem& p) {
  return p.visible_until == nullptr && p.query_offset >= 0 && p.k_len == p.query_offset + p.q_len;
}

void decode(AttentionProblem& p, const AttentionTiles& tiles, const at::Tensor& q, bool is_counted) {
  p.pass = AttentionPass::decode;
  tiles.lay_out(p);
  const auto partials = floats(p.batch * p.heads * p.q_len * p.decode_chunks() * (16 + p.value_width()), q);
  p.decode_partials = partials.mutable_data_ptr<float>();
  const int64_t tasks = p.batch * p.kv_heads * p.decode_chunks();
  const auto scratch = floats(workers_for(tasks) * p.scratch_floats, q);
  if (is_counted) return;
  float* const area = scratch.mutable_data_ptr<float>();
  parallel_tasks(tasks, [&](int64_t task, int64_t worker) { tiles.decode(p, task, area + worker * p.scratch_floats); });
  parallel_tasks(p.batch * p.heads * p.q_len, [&](int64_t task, int64_t) { tiles.decode_join(p, task); });
}

// Begins of the parts, [batch, parts + 1], such that each has about the same number of tiles to compute.
std::vector<int32_t> cut_into_parts(const AttentionProblem& p) {
  std::vector<int32_t> begins;
  for (int64_t b = 0; b < p.batch; ++b) {
    std::vector<int64_t> tiles_before{0};
    for (int64_t pair = 0; pair < p.group() * p.query_blocks(); ++pair) {
      const int64_t first = pair % p.query_blocks() * p.query_block, last = std::min(first + p.query_block, p.q_len) - 1;
      // A block that sees no key has work all the same: zeros.
      tiles_before.push_back(tiles_before.back() +
                             std::max<int64_t>(1, p.last_key(b, last) / p.key_block - p.first_key(b, first) / p.key_block + 1));
    }
    for (int64_t part = 0; part <= p.parts; ++part) {
      const int64_t target = tiles_before.back() * part / p.parts;
      begins.push_back(static_cast<int32_t>(std::lower_bound(tiles_before.begin(), tiles_before.end(), target) - tiles_before.begin()));
    }
  }
  return begins;
}

int64_t parts_for(const AttentionProblem& p) {
  const int64_t wanted = (kBackwardTasks + p.batch * p.kv_heads - 1) / (p.batch * p.kv_heads);
  return std::clamp<int64_t>(std::min(wanted, 2 * p.group()), 1, p.group() * p.query_blocks());
}

int64_t partial_floats(const AttentionProblem& p) { return p.batch * p.kv_heads * p.parts * p.part_size(); }

}  // namespace

AttentionScratch attention_scratch(int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t keys,
                                   at::ScalarType dtype) {
  AttentionProblem p{};
  p.batch = batch, p.q_len = seq, p.k_len = keys, p.heads = heads, p.kv_heads = kv_heads, p.head_dim = p.value_dim = head_dim;
  const auto& tiles = best_attention_tiles(dtype);
  tiles.lay_out(p);
  const int64_t forward = p.packed_floats + workers_for(batch * heads * p.query_blocks()) * p.scratch_floats;
  p.pass = AttentionPass::backward;
  tiles.lay_out(p);
  p.parts = parts_for(p);
  const int64_t backward = p.packed_floats + partial_floats(p) + workers_for(batch * kv_heads * p.parts) * p.scratch_floats;
  return {4 * forward, 4 * backward};
}

const AttentionTiles& attention_tiles(Isa isa) {
#ifdef INGOT_X86_ISAS
  if (isa == Isa::avx512) return avx512::attention_tiles;
  if (isa == Isa::avx2) return avx2::attention_tiles;
#endif
  static_cast<void>(isa);
  return portable::attention_tiles;
}

const AttentionTiles& attention_tiles(PairUnit unit) {
#ifdef INGOT_X86_ISAS
  if (unit == PairUnit::amx) return amx::attention_tiles;
  if (unit == PairUnit::avx512_bf16) return avx512_bf16::attention_tiles;
#endif
  static_cast<void>(unit);
  return attention_tiles(best_isa());
}

const AttentionTiles& best_attention_tiles(at::ScalarType dtype, at::Device device) {
  return dtype == at::kBFloat16 && !device::is_gpu(device) ? attention_tiles(pair_unit_of_matrices()) : attention_tiles(best_isa());
}

bool decodes(const at::Tensor& q, const Pages& pages, const AttentionMask& mask) {
  return q.numel() > 0 && q.size(2) / pages.keys[0].size(1) * q.size(1) <= kDecodeQueries && mask.query_offset >= 0 &&
         pages.length == mask.query_offset + q.size(1);
}

AttentionOutput paged_attention(const at::Tensor& q, const Pages& pages, const ScoreRule& rule, const AttentionMask& mask) {
  const auto visible_from = dense(mask.visible_from);
  const auto keys = pages.keys[0].transpose(1, 2), values = pages.values[0].transpose(1, 2);
  AttentionProblem p = describe(q, keys, values, rule, mask, visible_from, {});
  p.k_len = pages.length;
  const auto rows_of = [](std::span<const at::Tensor> pages) {
    std::vector<void*> data;
    for (const auto& page : pages) data.push_back(page.data_ptr());
    return data;
  };
  const auto key_pages = rows_of(pages.keys), value_pages = rows_of(pages.values);
  p.k.pages = key_pages.data(), p.v.pages = value_pages.data();
  AttentionOutput result = outputs(p, q);
  const auto all = [&](const at::Tensor& page) { return page.narrow(1, 0, 1).expand({-1, p.k_len, -1, -1}); };
  const bool is_counted = device::counted("attention", {q, all(keys), all(values)}, {result.out, result.log_sum_exp},
                                          attention_flops(q, all(keys), values, mask));
  decode(p, best_attention_tiles(q.scalar_type(), q.device()), q, is_counted);
  return result;
}

AttentionOutput attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ScoreRule& rule,
                                  const AttentionMask& mask, const AttentionTiles& tiles) {
  const auto visible_from = dense(mask.visible_from), visible_until = dense(mask.visible_until);
  AttentionProblem p = describe(q, k, v, rule, mask, visible_from, visible_until);
  AttentionOutput result = outputs(p, q);
  if (q.numel() == 0) return result;
  if (p.k_len == 0) {
    result.out.zero_();
    result.log_sum_exp.fill_(-std::numeric_limits<float>::infinity());
    return result;
  }
  const bool is_counted = device::counted("attention", {q, k, v}, {result.out, result.log_sum_exp}, attention_flops(q, k, v, mask));
  if (p.group() * p.q_len <= kDecodeQueries && query_sees_itself(p)) {
    decode(p, tiles, q, is_counted);
    return result;
  }
  tiles.lay_out(p);
  const int64_t tasks = p.batch * p.heads * p.query_blocks();
  const auto area = floats(p.packed_floats + workers_for(tasks) * p.scratch_floats, q);
  if (is_counted) return result;
  p.packed = area.mutable_data_ptr<float>();
  float* const scratch = p.packed + p.packed_floats;
  parallel_tasks(p.key_tiles(), [&](int64_t task, int64_t) { tiles.pack(p, task); });
  parallel_tasks(tasks, [&](int64_t task, int64_t worker) { tiles.forward(p, task, scratch + worker * p.scratch_floats); });
  return result;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                                                  const at::Tensor& v, const at::Tensor& out, const at::Tensor& log_sum_exp,
                                                                  const ScoreRule& rule, const AttentionMask& mask,
                                                                  const AttentionTiles& tiles) {
  const auto visible_from = dense(mask.visible_from), visible_until = dense(mask.visible_until);
  const auto sums = log_sum_exp.contiguous();
  AttentionProblem p = describe(q, k, v, rule, mask, visible_from, visible_until);
  const auto grad_q = at::empty(q.sizes(), q.options());
  // Keys that lie behind the last query have no gradient and no task that would write one.
  const bool all_keys_seen = k.size(1) == p.k_len && q.numel() > 0;
  const auto grad_k = all_keys_seen ? at::empty(k.sizes(), k.options()) : at::zeros(k.sizes(), k.options());
  const auto grad_v = all_keys_seen ? at::empty(v.sizes(), v.options()) : at::zeros(v.sizes(), v.options());
  if (q.numel() == 0) return {grad_q, grad_k, grad_v};
  if (p.k_len == 0) return {grad_q.zero_(), grad_k, grad_v};
  p.out = rows(out), p.grad_out = rows(grad_out), p.grad_q = rows(grad_q), p.grad_k = rows(grad_k), p.grad_v = rows(grad_v);
  p.log_sum_exp = const_cast<float*>(sums.const_data_ptr<float>());
  p.pass = AttentionPass::backward;
  tiles.lay_out(p);
  p.parts = parts_for(p);
  const int64_t tasks = p.batch * p.kv_heads * p.parts;
  const auto area = floats(p.packed_floats + partial_floats(p) + workers_for(tasks) * p.scratch_floats, q);
  if (device::counted("attention.backward", {grad_out, q, k, v, out, sums}, {grad_q, grad_k, grad_v}, 2 * attention_flops(q, k, v, mask)))
    return {grad_q, grad_k, grad_v};
  const auto begins = cut_into_parts(p);
  p.part_begin = begins.data();
  p.packed = area.mutable_data_ptr<float>();
  p.partial_grads = p.packed + p.packed_floats;
  float* const scratch = p.partial_grads + partial_floats(p);
  parallel_tasks(p.key_tiles(), [&](int64_t task, int64_t) { tiles.pack(p, task); });
  parallel_tasks(tasks, [&](int64_t task, int64_t worker) { tiles.backward(p, task, scratch + worker * p.scratch_floats); });
  parallel_tasks(p.key_tiles(), [&](int64_t task, int64_t) { tiles.reduce(p, task); });
  return {grad_q, grad_k, grad_v};
}

}  // namespace ingot::kernels::cpu
