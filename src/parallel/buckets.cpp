#include "parallel/buckets.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/work_scope.h"
#include "kernels/exact_sum.h"

namespace ingot::parallel {

using layers::Parameter;

namespace {

int64_t rounded_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// What layers read through Parameter::value when they run; everything else is held by autograd's graph, and is small.
bool may_come_and_go(const Parameter& p) {
  return p.kind == Parameter::Kind::matrix || p.kind == Parameter::Kind::embedding || p.kind == Parameter::Kind::head;
}

}  // namespace

// Parameters that will be one buffer. Values of one buffer have one dtype.
struct Buckets::Open {
  comm::Group* group = nullptr;
  at::ScalarType dtype = at::kFloat;
  bool comes_and_goes = false;
  std::vector<Parameter*> parameters;
  int64_t bytes = 0;
};

// What one collective reduces or gathers: a part of a buffer, which may begin and end within a tensor.
struct Buckets::Bucket {
  at::Tensor gradient;        // [elements] of the buffer's
  at::Tensor own_gradient;    // [chunk], a slice of it unless gradients are sharded
  at::Tensor value;           // [elements] of the buffer's with ZeRO, else undefined
  at::Tensor own_value;       // [chunk], a slice of it unless weights are sharded
  at::Tensor exact_sum;       // fp64 [elements] of the buffer's, [chunk] if gradients are sharded; undefined unless they are reproducible
  at::Tensor sent, arriving;  // while under way: a copy in bf16; the sum, before it is added
  comm::Work reduction, gathering;

  int64_t chunk() const { return own_gradient.numel(); }
};

// Memory of whole layers. Its buckets start and finish together.
struct Buckets::Buffer {
  comm::Group* group = nullptr;
  std::vector<Parameter*> parameters;
  std::vector<int64_t> offsets;
  int64_t first_layer = 0;  // the one that backward finishes last
  int64_t last_layer = 0;   // the one that forward uses last
  bool comes_and_goes = false;
  std::vector<int64_t> sizes;  // elements of each bucket

  int64_t elements() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }
  struct Slice {
    size_t bucket;
    int64_t rank;
    tensor::Range of_chunk, of_parameter;
  };
  /// visit(Slice) for all that these ranks have of parameter i.
  template <class Visit>
  void for_each_slice(size_t i, const tensor::Range& ranks, const Visit& visit) const {
    const int64_t offset = offsets[i], stop = offset + parameters[i]->local_elements();
    int64_t from = 0;
    for (size_t b = 0; b < sizes.size() && from < stop; from += sizes[b++]) {
      const int64_t chunk = sizes[b] / group->size(), first = std::max(offset, from), last = std::min(stop, from + sizes[b]);
      if (first >= last) continue;
      for (int64_t r = std::max(ranks.begin, (first - from) / chunk); r < ranks.end && from + r * chunk < last; ++r) {
        const int64_t chunk_begin = from + r * chunk;
        const int64_t begin = std::max(chunk_begin, first), end = std::min(chunk_begin + chunk, last);
        if (begin < end) visit(Slice{b, r, {begin - chunk_begin, end - chunk_begin}, {begin - offset, end - offset}});
      }
    }
  }

  at::Tensor gradient;  // [elements]
  at::Tensor value;     // [elements] with ZeRO, else undefined
  std::vector<Bucket> buckets;
  bool holds_sum = false;  // own_gradient has something from an earlier microbatch
  bool is_reducing = false, is_gathering = false;
  bool is_done = false;  // this microbatch's sum has been started
};

std::vector<std::unique_ptr<Buckets::Buffer>> Buckets::lay_out(layers::ParameterList& parameters, const GroupOf& group_of,
                                                               const Options& options) {
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::map<int64_t, std::vector<Parameter*>, std::greater<>> by_layer;  // backward goes from the last to the first
  for (const auto& p : parameters.all())
    if (p->is_trained()) by_layer[p->layer].push_back(p.get());
  std::vector<Open> open;  // of each kind the one that still grows
  const auto of_kind = [&](Parameter& p) -> Open& {
    auto& group = group_of(p);
    const auto dtype = p.value.scalar_type();
    // Both ends of a pipeline may hold an embedding, and never want it at the same time.
    const bool stays = options.is_pipelined && p.kind == Parameter::Kind::embedding;
    const bool comes_and_goes = options.zero == 3 && may_come_and_go(p) && !stays;
    for (auto& o : open)
      if (o.group == &group && o.dtype == dtype && o.comes_and_goes == comes_and_goes) return o;
    return open.emplace_back(Open{&group, dtype, comes_and_goes, {}, 0});
  };
  for (auto& [layer, list] : by_layer) {
    for (auto* p : list) {
      auto& o = of_kind(*p);
      o.parameters.push_back(p);
      o.bytes += p->local_elements() * at::elementSize(p->wide_type());
    }
    // Weights that come and go do so block by block.
    for (auto& o : open)
      if (!o.parameters.empty() && (o.comes_and_goes || o.bytes >= options.bucket_bytes))
        buffers.push_back(close(std::exchange(o, {o.group, o.dtype, o.comes_and_goes, {}, 0}), options));
  }
  for (auto& o : open)
    if (!o.parameters.empty()) buffers.push_back(close(std::move(o), options));
  std::stable_sort(buffers.begin(), buffers.end(), [](const auto& a, const auto& b) { return a->first_layer > b->first_layer; });
  return buffers;
}

Buckets::Buckets(layers::ParameterList& parameters, const GroupOf& group_of, const Options& options)
    : options_(options), buffers_(lay_out(parameters, group_of, options)) {
  const at::NoGradGuard no_grad;
  for (const auto& p : parameters.all())
    if (p->kind == Parameter::Kind::matrix) last_block_ = std::max(last_block_, p->layer);
  for (const auto& buffer : buffers_) allocate(*buffer);
}

Buckets::~Buckets() {
  for (auto& buffer : buffers_)
    for (auto* p : buffer->parameters) p->gradient_memory = nullptr;
}

// Elements of each bucket of a buffer of `elements`, padded to whole chunks of all ranks.
static std::vector<int64_t> bucket_sizes(int64_t elements, int64_t ranks, int64_t element_bytes, int64_t bucket_bytes) {
  const int64_t wished = bucket_bytes / element_bytes;
  const int64_t count = ranks > 1 && wished > 0 ? std::max<int64_t>(1, elements / wished) : 1;
  const int64_t size = rounded_up((elements + count - 1) / count, ranks * Buckets::kAlignment);
  std::vector<int64_t> sizes;
  for (int64_t left = elements; left > 0; left -= size) sizes.push_back(rounded_up(std::min(left, size), ranks * Buckets::kAlignment));
  return sizes;
}

std::unique_ptr<Buckets::Buffer> Buckets::close(Open open, const Options& options) {
  auto buffer = std::make_unique<Buffer>();
  buffer->group = open.group;
  buffer->comes_and_goes = open.comes_and_goes;
  buffer->parameters = std::move(open.parameters);
  buffer->first_layer = buffer->parameters.front()->layer;
  int64_t end = 0;
  for (const auto* p : buffer->parameters) {
    buffer->offsets.push_back(end);
    end += rounded_up(p->local_elements(), kAlignment);
    buffer->first_layer = std::min(buffer->first_layer, p->layer);
    buffer->last_layer = std::max(buffer->last_layer, p->last_layer);
  }
  const auto element_bytes = static_cast<int64_t>(at::elementSize(buffer->parameters.front()->wide_type()));
  buffer->sizes = bucket_sizes(end, buffer->group->size(), element_bytes, options.bucket_bytes);
  return buffer;
}

void Buckets::allocate(Buffer& b) {
  auto* buffer = &b;
  const auto& first = *buffer->parameters.front();
  const auto options = first.value.options().requires_grad(false);
  if (options_.zero > 0) {
    const base::WorkScope scope("weights");
    buffer->value = at::zeros({buffer->elements()}, options);
  }
  {
    const base::WorkScope scope("gradients");
    buffer->gradient = at::empty({buffer->elements()}, options.dtype(first.wide_type()));
    cut(*buffer);
    if (shards_gradients()) drop_storage(buffer->gradient);
    else buffer->gradient.zero_();
  }
  const base::WorkScope scope("weights");
  for (size_t i = 0; i < buffer->parameters.size(); ++i) {
    auto* p = buffer->parameters[i];
    const int64_t offset = buffer->offsets[i], count = p->local_elements();
    p->grad = buffer->gradient.narrow(0, offset, count).view(p->value.sizes());
    p->has_gradient = false;
    p->gradient_memory = this;
    buffer_of_.emplace(p, buffer);
    if (options_.zero == 0) continue;
    auto moved = buffer->value.narrow(0, offset, count).view(p->value.sizes());
    moved.copy_(p->value);
    p->value = moved.detach().set_requires_grad(true);
  }
  if (buffer->comes_and_goes) {
    for (auto& bucket : buffer->buckets) bucket.own_value = bucket.own_value.clone();
    drop_storage(buffer->value);
  }
}

void Buckets::cut(Buffer& buffer) const {
  const int64_t ranks = buffer.group->size(), rank = buffer.group->rank();
  const int64_t kept = shards_gradients() ? buffer.gradient.numel() / ranks : buffer.gradient.numel();
  const auto own = shards_gradients() ? at::zeros({kept}, buffer.gradient.options()) : at::Tensor();
  const auto exact = options_.reproducible ? at::zeros({kept}, buffer.gradient.options().dtype(at::kDouble)) : at::Tensor();
  int64_t at = 0;
  for (const int64_t size : buffer.sizes) {
    const int64_t chunk = size / ranks;
    Bucket bucket;
    bucket.gradient = buffer.gradient.narrow(0, at, size);
    bucket.own_gradient = own.defined() ? own.narrow(0, at / ranks, chunk) : bucket.gradient.narrow(0, rank * chunk, chunk);
    if (exact.defined()) bucket.exact_sum = shards_gradients() ? exact.narrow(0, at / ranks, chunk) : exact.narrow(0, at, size);
    if (buffer.value.defined()) {
      bucket.value = buffer.value.narrow(0, at, size);
      bucket.own_value = bucket.value.narrow(0, rank * chunk, chunk);
    }
    buffer.buckets.push_back(std::move(bucket));
    at += size;
  }
}

std::vector<Shard> Buckets::shards() const {
  std::vector<Shard> shards;
  for (const auto& buffer : buffers_) {
    for (size_t i = 0; i < buffer->parameters.size(); ++i) {
      auto* p = buffer->parameters[i];
      if (options_.zero == 0) {
        shards.push_back({p, 0, p->local_elements(), p->value.detach().view(-1), {}, buffer->group->rank() == 0});
        continue;
      }
      const int64_t rank = buffer->group->rank();
      buffer->for_each_slice(i, {rank, rank + 1}, [&](const Buffer::Slice& s) {
        const auto& bucket = buffer->buckets[s.bucket];
        shards.push_back({p, s.of_parameter.begin, s.of_parameter.end, bucket.own_value.narrow(0, s.of_chunk.begin, s.of_chunk.size()),
                          bucket.own_gradient.narrow(0, s.of_chunk.begin, s.of_chunk.size()), true});
      });
    }
  }
  return shards;
}

Buckets::Slices Buckets::slices_of(layers::ParameterList& parameters, const GroupOf& group_of, const Options& options) {
  Slices slices;
  for (const auto& buffer : lay_out(parameters, group_of, options)) {
    for (size_t i = 0; i < buffer->parameters.size(); ++i) {
      const auto& p = *buffer->parameters[i];
      auto& all = slices[p.name];
      const int ranks = buffer->group->size();
      for (int rank = 0; options.zero == 0 && rank < ranks; ++rank) all.emplace_back(rank, tensor::Range{0, p.local_elements()});
      if (options.zero > 0)
        buffer->for_each_slice(i, {0, ranks}, [&](const Buffer::Slice& s) { all.emplace_back(static_cast<int>(s.rank), s.of_parameter); });
    }
  }
  return slices;
}

bool Buckets::keeps(const Parameter& parameter) const {
  const auto found = buffer_of_.find(&parameter);
  return found == buffer_of_.end() || !found->second->comes_and_goes;
}

size_t Buckets::count() const {
  size_t count = 0;
  for (const auto& buffer : buffers_) count += buffer->buckets.size();
  return count;
}

int64_t Buckets::elements() const {
  int64_t count = 0;
  for (const auto& buffer : buffers_) count += buffer->gradient.numel();
  return count;
}

// -- weights ---------------------------------------------------------------------------------------------------------------

void Buckets::start_gather(Buffer& buffer) {
  if (buffer.is_gathering || (buffer.comes_and_goes && has_storage(buffer.value))) return;
  const at::NoGradGuard no_grad;
  const base::WorkScope scope(kGatherScope);
  give_storage(buffer.value);
  for (auto& bucket : buffer.buckets) bucket.gathering = buffer.group->start_all_gather(bucket.value, bucket.own_value);
  buffer.is_gathering = true;
}

void Buckets::finish_gather(Buffer& buffer) {
  if (!buffer.is_gathering) return;
  for (auto& bucket : buffer.buckets) bucket.gathering.wait();
  buffer.is_gathering = false;
}

void Buckets::release_values(Buffer& buffer) {
  finish_gather(buffer);
  drop_storage(buffer.value);
}

void Buckets::before_forward(int64_t layer) {
  if (options_.zero == 0) return;
  // Buckets come in the order of backward, so from the end.
  for (auto at = buffers_.rbegin(); at != buffers_.rend(); ++at) {
    Buffer& buffer = **at;
    if (buffer.comes_and_goes && (buffer.first_layer == layer || buffer.first_layer == layer + 1)) start_gather(buffer);
    if (buffer.first_layer <= layer) finish_gather(buffer);
  }
}

void Buckets::after_forward(int64_t layer) {
  for (auto& buffer : buffers_) {
    if (!buffer->comes_and_goes || buffer->last_layer != layer) continue;
    if (layer == last_block_ && at::GradMode::is_enabled()) continue;  // backward begins with it
    release_values(*buffer);
  }
}

void Buckets::before_backward(int64_t layer) {
  for (auto& buffer : buffers_) {
    if (!buffer->comes_and_goes || buffer->first_layer < 0 || buffer->first_layer > last_block_) continue;
    if (buffer->first_layer == layer || buffer->first_layer == layer - 1) start_gather(*buffer);
    if (buffer->first_layer == layer) finish_gather(*buffer);
  }
}

void Buckets::publish() {
  if (options_.zero == 0) return;
  for (auto at = buffers_.rbegin(); at != buffers_.rend(); ++at) (*at)->comes_and_goes ? release_values(**at) : start_gather(**at);
}

void Buckets::complete_values() {
  for (auto& buffer : buffers_)
    if (!buffer->comes_and_goes) finish_gather(*buffer);
}

// -- gradients -------------------------------------------------------------------------------------------------------------

void Buckets::provide(Parameter& parameter) {
  auto& buffer = *buffer_of_.at(&parameter);
  if (buffer.is_reducing) throw base::NumericError("the gradient of {} came after it was sent; this is an error in ingot", parameter.name);
  if (!shards_gradients() || has_storage(buffer.gradient)) return;
  const base::WorkScope scope(kReduceScope);
  give_storage(buffer.gradient);
  buffer.gradient.zero_();  // the padding, too
}

void Buckets::begin_step() {
  for (auto& buffer : buffers_) buffer->holds_sum = false;
}

void Buckets::begin_backward(bool is_last) {
  sends_ = is_last || shards_gradients();
  if (shards_gradients())
    for (auto& buffer : buffers_) finish_reduction(*buffer);
}

void Buckets::collect(Buffer& buffer) {
  for (auto* p : buffer.parameters) {
    p->collect_gradient();
    // Nothing here touched it (an expert without tokens); another rank's gradient still counts.
    bool overwrite = false;
    auto& gradient = p->gradient_buffer(overwrite);
    if (overwrite) gradient.zero_();
  }
}

// What this microbatch adds, without which the next one begins.
void Buckets::add_exactly(Buffer& buffer) {
  const at::NoGradGuard no_grad;
  const base::WorkScope scope(kReduceScope);
  collect(buffer);
  for (auto& bucket : buffer.buckets) kernels::round_into(bucket.exact_sum, bucket.gradient, kernels::kGradientExponent, buffer.holds_sum);
  buffer.holds_sum = true;
  for (auto* p : buffer.parameters) p->drop_gradient();
}

at::Tensor Buckets::to_send(const Bucket& bucket) const {
  if (options_.reduce_in_bf16) return bucket.gradient.to(at::kBFloat16);
  if (!options_.reproducible) return bucket.gradient;
  if (!shards_gradients()) return bucket.exact_sum;
  auto sent = at::empty({bucket.gradient.numel()}, bucket.exact_sum.options());
  kernels::round_into(sent, bucket.gradient, kernels::kGradientExponent, /*adds=*/false);
  return sent;
}

void Buckets::start_reduction(Buffer& buffer) {
  const at::NoGradGuard no_grad;
  const base::WorkScope scope(kReduceScope);
  if (options_.reproducible && !shards_gradients()) add_exactly(buffer);
  else collect(buffer);
  for (auto& bucket : buffer.buckets) {
    const at::Tensor sent = to_send(bucket);
    if (options_.zero == 0) {
      bucket.arriving = sent;
      bucket.reduction = buffer.group->start_all_reduce(sent);
    } else {
      // Without sharding the sum lands where this rank's slice lies; nobody else reads that part of this rank's tensor.
      const bool is_apart = shards_gradients() || options_.reduce_in_bf16 || options_.reproducible;
      bucket.arriving = is_apart ? at::empty({bucket.chunk()}, sent.options()) : bucket.own_gradient;
      bucket.reduction = buffer.group->start_reduce_scatter(bucket.arriving, sent);
      bucket.sent = sent;
    }
  }
  buffer.is_reducing = buffer.is_done = true;
}

void Buckets::finish_reduction(Buffer& buffer) {
  if (!buffer.is_reducing) return;
  const at::NoGradGuard no_grad;
  for (auto& bucket : buffer.buckets) bucket.reduction.wait();
  buffer.is_reducing = false;
  for (const auto* p : buffer.parameters)
    if (p->value.grad().defined())
      throw base::NumericError("the gradient of {} came after it was sent; this is an error in ingot", p->name);
  for (auto& bucket : buffer.buckets) {
    const auto& own = options_.zero == 0 ? bucket.gradient : bucket.own_gradient;
    // Of sharded gradients the sum grows with each microbatch; of others all are in it that arrives.
    const auto& target = options_.reproducible && shards_gradients() ? bucket.exact_sum : own;
    const bool adds = shards_gradients() && buffer.holds_sum;
    if (!bucket.arriving.is_same(target)) adds ? target.add_(bucket.arriving) : target.copy_(bucket.arriving);
    bucket.arriving.reset();
    bucket.sent.reset();
  }
  if (options_.reproducible && !shards_gradients())
    for (auto* p : buffer.parameters) p->has_gradient = true;
  if (!shards_gradients()) return;
  buffer.holds_sum = true;
  drop_storage(buffer.gradient);
  for (auto* p : buffer.parameters) p->drop_gradient();
}

void Buckets::release(int64_t layer) {
  for (auto& buffer : buffers_)
    if (buffer->comes_and_goes && buffer->first_layer == layer && layer >= 0) release_values(*buffer);
}

void Buckets::after_backward(int64_t layer) {
  release(layer);
  for (auto& buffer : buffers_) {
    if (!sends_ || buffer->first_layer < layer || (options_.is_pipelined && shards_gradients())) continue;
    // Whole gradients live no longer than it takes to send them: the bucket before this one must be through.
    if (buffer->is_reducing && shards_gradients()) finish_reduction(*buffer);
    else if (!buffer->is_done) start_reduction(*buffer);
  }
}

void Buckets::finish_backward() {
  if (!sends_ && options_.reproducible)
    for (auto& buffer : buffers_) add_exactly(*buffer);
  if (!sends_) return;
  for (auto& buffer : buffers_)
    if (!buffer->is_done) start_reduction(*buffer);
  for (auto& buffer : buffers_) buffer->is_done = false;
}

// Not before: the other end of a pipeline may need messages of this rank to come as far.
void Buckets::finish_step() {
  for (auto& buffer : buffers_) finish_reduction(*buffer);
  if (!options_.reproducible || !shards_gradients()) return;
  for (auto& buffer : buffers_)
    for (auto& bucket : buffer->buckets) bucket.own_gradient.copy_(bucket.exact_sum);
}

}  // namespace ingot::parallel
