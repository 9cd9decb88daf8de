#include "parallel/buckets.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"

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

  at::Tensor gradient;  // [elements]
  at::Tensor value;     // [elements] with ZeRO, else undefined
  std::vector<Bucket> buckets;
  bool holds_sum = false;  // own_gradient has something from an earlier microbatch
  bool is_reducing = false, is_gathering = false;
  bool is_done = false;  // this microbatch's sum has been started
};

Buckets::Buckets(layers::ParameterList& parameters, const GroupOf& group_of, const Options& options) : options_(options) {
  const at::NoGradGuard no_grad;
  std::map<int64_t, std::vector<Parameter*>, std::greater<>> by_layer;  // backward goes from the last to the first
  for (const auto& p : parameters.all())
    if (p->is_trained()) by_layer[p->layer].push_back(p.get());
  std::vector<Open> open;  // of each kind the one that still grows
  const auto of_kind = [&](Parameter& p) -> Open& {
    auto& group = group_of(p);
    const auto dtype = p.value.scalar_type();
    // Both ends of a pipeline may hold an embedding, and never want it at the same time.
    const bool stays = options_.is_pipelined && p.kind == Parameter::Kind::embedding;
    const bool comes_and_goes = options_.zero == 3 && may_come_and_go(p) && !stays;
    for (auto& o : open)
      if (o.group == &group && o.dtype == dtype && o.comes_and_goes == comes_and_goes) return o;
    return open.emplace_back(Open{&group, dtype, comes_and_goes, {}, 0});
  };
  for (auto& [layer, list] : by_layer) {
    for (auto* p : list) {
      auto& o = of_kind(*p);
      o.parameters.push_back(p);
      o.bytes += p->local_elements() * at::elementSize(p->wide_type());
      if (may_come_and_go(*p)) last_block_ = std::max(last_block_, p->kind == Parameter::Kind::matrix ? layer : int64_t{-1});
    }
    // Weights that come and go do so block by block.
    for (auto& o : open)
      if (!o.parameters.empty() && (o.comes_and_goes || o.bytes >= options_.bucket_bytes))
        close(std::exchange(o, {o.group, o.dtype, o.comes_and_goes, {}, 0}));
  }
  for (auto& o : open)
    if (!o.parameters.empty()) close(std::move(o));
  std::stable_sort(buffers_.begin(), buffers_.end(), [](const auto& a, const auto& b) { return a->first_layer > b->first_layer; });
}

Buckets::~Buckets() {
  for (auto& buffer : buffers_)
    for (auto* p : buffer->parameters) p->gradient_memory = nullptr;
}

// Elements of each bucket of a buffer of `elements`, padded to whole chunks of all ranks.
std::vector<int64_t> Buckets::bucket_sizes(int64_t elements, int64_t ranks, int64_t element_bytes) const {
  const int64_t wished = options_.bucket_bytes / element_bytes;
  const int64_t count = ranks > 1 && wished > 0 ? std::max<int64_t>(1, elements / wished) : 1;
  const int64_t size = rounded_up((elements + count - 1) / count, ranks * kAlignment);
  std::vector<int64_t> sizes;
  for (int64_t left = elements; left > 0; left -= size) sizes.push_back(rounded_up(std::min(left, size), ranks * kAlignment));
  return sizes;
}

void Buckets::close(Open open) {
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
  const auto& first = *buffer->parameters.front();
  const auto options = first.value.options().requires_grad(false);
  const auto sizes = bucket_sizes(end, buffer->group->size(), static_cast<int64_t>(at::elementSize(first.wide_type())));
  const int64_t elements = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  buffer->gradient = at::empty({elements}, options.dtype(first.wide_type()));
  if (options_.zero > 0) buffer->value = at::zeros({elements}, options);
  cut(*buffer, sizes);
  if (shards_gradients()) drop_storage(buffer->gradient);
  else buffer->gradient.zero_();
  for (size_t i = 0; i < buffer->parameters.size(); ++i) {
    auto* p = buffer->parameters[i];
    const int64_t offset = buffer->offsets[i], count = p->local_elements();
    p->grad = buffer->gradient.narrow(0, offset, count).view(p->value.sizes());
    p->has_gradient = false;
    p->gradient_memory = this;
    buffer_of_.emplace(p, buffer.get());
    if (options_.zero == 0) continue;
    auto moved = buffer->value.narrow(0, offset, count).view(p->value.sizes());
    moved.copy_(p->value);
    p->value = moved.detach().set_requires_grad(true);
  }
  if (buffer->comes_and_goes) {
    for (auto& bucket : buffer->buckets) bucket.own_value = bucket.own_value.clone();
    drop_storage(buffer->value);
  }
  buffers_.push_back(std::move(buffer));
}

void Buckets::cut(Buffer& buffer, const std::vector<int64_t>& sizes) const {
  const int64_t ranks = buffer.group->size(), rank = buffer.group->rank();
  const auto own = shards_gradients() ? at::zeros({buffer.gradient.numel() / ranks}, buffer.gradient.options()) : at::Tensor();
  int64_t at = 0;
  for (const int64_t size : sizes) {
    const int64_t chunk = size / ranks;
    Bucket bucket;
    bucket.gradient = buffer.gradient.narrow(0, at, size);
    bucket.own_gradient = own.defined() ? own.narrow(0, at / ranks, chunk) : bucket.gradient.narrow(0, rank * chunk, chunk);
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
      const int64_t offset = buffer->offsets[i], stop = offset + p->local_elements();
      if (options_.zero == 0) {
        shards.push_back({p, 0, p->local_elements(), p->value.detach().view(-1), {}, buffer->group->rank() == 0});
        continue;
      }
      int64_t from = 0;  // of this rank's chunk of the bucket
      for (const auto& bucket : buffer->buckets) {
        const int64_t chunk_begin = from + buffer->group->rank() * bucket.chunk();
        const int64_t begin = std::max(chunk_begin, offset), end = std::min(chunk_begin + bucket.chunk(), stop);
        from += bucket.gradient.numel();
        if (begin >= end) continue;
        shards.push_back({p, begin - offset, end - offset, bucket.own_value.narrow(0, begin - chunk_begin, end - begin),
                          bucket.own_gradient.narrow(0, begin - chunk_begin, end - begin), true});
      }
    }
  }
  return shards;
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

void Buckets::start_reduction(Buffer& buffer) {
  const at::NoGradGuard no_grad;
  for (auto* p : buffer.parameters) {
    p->collect_gradient();
    // Nothing here touched it (an expert without tokens); another rank's gradient still counts.
    bool overwrite = false;
    auto& gradient = p->gradient_buffer(overwrite);
    if (overwrite) gradient.zero_();
  }
  for (auto& bucket : buffer.buckets) {
    at::Tensor sent = options_.reduce_in_bf16 ? bucket.gradient.to(at::kBFloat16) : bucket.gradient;
    if (options_.zero == 0) {
      bucket.arriving = sent;
      bucket.reduction = buffer.group->start_all_reduce(sent);
    } else {
      // Without sharding the sum lands where this rank's slice lies; nobody else reads that part of this rank's tensor.
      bucket.arriving = shards_gradients() || options_.reduce_in_bf16 ? at::empty({bucket.chunk()}, sent.options()) : bucket.own_gradient;
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
    const auto& target = options_.zero == 0 ? bucket.gradient : bucket.own_gradient;
    if (!bucket.arriving.is_same(target)) buffer.holds_sum ? target.add_(bucket.arriving) : target.copy_(bucket.arriving);
    bucket.arriving.reset();
    bucket.sent.reset();
  }
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
  if (!sends_) return;
  for (auto& buffer : buffers_)
    if (!buffer->is_done) start_reduction(*buffer);
  for (auto& buffer : buffers_) buffer->is_done = false;
}

// Not before: the other end of a pipeline may need messages of this rank to come as far.
void Buckets::finish_step() {
  for (auto& buffer : buffers_) finish_reduction(*buffer);
}

}  // namespace ingot::parallel
