#include "parallel/buckets.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>

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

// Parameters that will be one bucket. Values of one bucket have one dtype.
struct Buckets::Open {
  comm::Group* group = nullptr;
  at::ScalarType dtype = at::kFloat;
  bool comes_and_goes = false;
  std::vector<Parameter*> parameters;
  int64_t bytes = 0;
};

struct Buckets::Bucket {
  comm::Group* group = nullptr;
  std::vector<Parameter*> parameters;
  std::vector<int64_t> offsets;
  int64_t first_layer = 0;  // the one that backward finishes last
  int64_t last_layer = 0;   // the one that forward uses last
  bool comes_and_goes = false;

  at::Tensor gradient;        // [elements]
  at::Tensor own_gradient;    // [chunk], a slice of it unless gradients are sharded
  at::Tensor value;           // [elements] with ZeRO, else undefined
  at::Tensor own_value;       // [chunk], a slice of it unless weights are sharded
  at::Tensor sent, arriving;  // while under way: a copy in bf16; the sum, before it is added
  bool holds_sum = false;     // own_gradient has something from an earlier microbatch
  bool is_reducing = false, is_gathering = false;
  bool is_done = false;  // this microbatch's sum has been started
  comm::Work reduction, gathering;

  int64_t chunk() const { return own_gradient.numel(); }
  at::Tensor own_slice(const at::Tensor& flat) const { return flat.narrow(0, group->rank() * chunk(), chunk()); }
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
  std::stable_sort(buckets_.begin(), buckets_.end(), [](const auto& a, const auto& b) { return a->first_layer > b->first_layer; });
}

Buckets::~Buckets() {
  for (auto& bucket : buckets_)
    for (auto* p : bucket->parameters) p->gradient_memory = nullptr;
}

void Buckets::close(Open open) {
  auto bucket = std::make_unique<Bucket>();
  bucket->group = open.group;
  bucket->comes_and_goes = open.comes_and_goes;
  bucket->parameters = std::move(open.parameters);
  bucket->first_layer = bucket->parameters.front()->layer;
  int64_t end = 0;
  for (const auto* p : bucket->parameters) {
    bucket->offsets.push_back(end);
    end += rounded_up(p->local_elements(), kAlignment);
    bucket->first_layer = std::min(bucket->first_layer, p->layer);
    bucket->last_layer = std::max(bucket->last_layer, p->last_layer);
  }
  const int64_t ranks = bucket->group->size(), chunk = rounded_up((end + ranks - 1) / ranks, kAlignment), elements = ranks * chunk;
  const auto& first = *bucket->parameters.front();
  const auto options = first.value.options().requires_grad(false);
  bucket->gradient = at::empty({elements}, options.dtype(first.wide_type()));
  bucket->own_gradient = bucket->gradient.narrow(0, bucket->group->rank() * chunk, chunk);
  if (shards_gradients()) {
    bucket->own_gradient = at::zeros({chunk}, bucket->gradient.options());
    drop_storage(bucket->gradient);
  } else {
    bucket->gradient.zero_();
  }
  if (options_.zero > 0) {
    bucket->value = at::zeros({elements}, options);
    bucket->own_value = bucket->own_slice(bucket->value);
  }
  for (size_t i = 0; i < bucket->parameters.size(); ++i) {
    auto* p = bucket->parameters[i];
    const int64_t offset = bucket->offsets[i], count = p->local_elements();
    p->grad = bucket->gradient.narrow(0, offset, count).view(p->value.sizes());
    p->has_gradient = false;
    p->gradient_memory = this;
    bucket_of_.emplace(p, bucket.get());
    if (options_.zero == 0) continue;
    auto moved = bucket->value.narrow(0, offset, count).view(p->value.sizes());
    moved.copy_(p->value);
    p->value = moved.detach().set_requires_grad(true);
  }
  if (bucket->comes_and_goes) {
    bucket->own_value = bucket->own_value.clone();
    drop_storage(bucket->value);
  }
  buckets_.push_back(std::move(bucket));
}

std::vector<Shard> Buckets::shards() const {
  std::vector<Shard> shards;
  for (const auto& bucket : buckets_) {
    const bool is_sharded = options_.zero > 0;
    const int64_t from = is_sharded ? bucket->group->rank() * bucket->chunk() : 0;
    const int64_t to = is_sharded ? from + bucket->chunk() : bucket->gradient.numel();
    for (size_t i = 0; i < bucket->parameters.size(); ++i) {
      auto* p = bucket->parameters[i];
      const int64_t offset = bucket->offsets[i], begin = std::max(from, offset), end = std::min(to, offset + p->local_elements());
      if (begin >= end) continue;
      Shard shard{p, begin - offset, end - offset, {}, {}, is_sharded || bucket->group->rank() == 0};
      shard.value = is_sharded ? bucket->own_value.narrow(0, begin - from, end - begin) : p->value.detach().view(-1);
      if (is_sharded) shard.gradient = bucket->own_gradient.narrow(0, begin - from, end - begin);
      shards.push_back(std::move(shard));
    }
  }
  return shards;
}

int64_t Buckets::elements() const {
  int64_t count = 0;
  for (const auto& bucket : buckets_) count += bucket->gradient.numel();
  return count;
}

// -- weights ---------------------------------------------------------------------------------------------------------------

void Buckets::start_gather(Bucket& bucket) {
  if (bucket.is_gathering || (bucket.comes_and_goes && has_storage(bucket.value))) return;
  const at::NoGradGuard no_grad;
  give_storage(bucket.value);
  bucket.gathering = bucket.group->start_all_gather(bucket.value, bucket.own_value);
  bucket.is_gathering = true;
}

void Buckets::finish_gather(Bucket& bucket) {
  if (!bucket.is_gathering) return;
  bucket.gathering.wait();
  bucket.is_gathering = false;
}

void Buckets::release_values(Bucket& bucket) {
  finish_gather(bucket);
  drop_storage(bucket.value);
}

void Buckets::before_forward(int64_t layer) {
  if (options_.zero == 0) return;
  // Buckets come in the order of backward, so from the end.
  for (auto at = buckets_.rbegin(); at != buckets_.rend(); ++at) {
    Bucket& bucket = **at;
    if (bucket.comes_and_goes && (bucket.first_layer == layer || bucket.first_layer == layer + 1)) start_gather(bucket);
    if (bucket.first_layer <= layer) finish_gather(bucket);
  }
}

void Buckets::after_forward(int64_t layer) {
  for (auto& bucket : buckets_) {
    if (!bucket->comes_and_goes || bucket->last_layer != layer) continue;
    if (layer == last_block_ && at::GradMode::is_enabled()) continue;  // backward begins with it
    release_values(*bucket);
  }
}

void Buckets::before_backward(int64_t layer) {
  for (auto& bucket : buckets_) {
    if (!bucket->comes_and_goes || bucket->first_layer < 0 || bucket->first_layer > last_block_) continue;
    if (bucket->first_layer == layer || bucket->first_layer == layer - 1) start_gather(*bucket);
    if (bucket->first_layer == layer) finish_gather(*bucket);
  }
}

void Buckets::publish() {
  if (options_.zero == 0) return;
  for (auto at = buckets_.rbegin(); at != buckets_.rend(); ++at) (*at)->comes_and_goes ? release_values(**at) : start_gather(**at);
}

void Buckets::complete_values() {
  for (auto& bucket : buckets_)
    if (!bucket->comes_and_goes) finish_gather(*bucket);
}

// -- gradients -------------------------------------------------------------------------------------------------------------

void Buckets::provide(Parameter& parameter) {
  auto& bucket = *bucket_of_.at(&parameter);
  if (bucket.is_reducing) throw base::NumericError("the gradient of {} came after it was sent; this is an error in ingot", parameter.name);
  if (!shards_gradients() || has_storage(bucket.gradient)) return;
  give_storage(bucket.gradient);
  bucket.gradient.zero_();  // the padding, too
}

void Buckets::begin_step() {
  for (auto& bucket : buckets_) bucket->holds_sum = false;
}

void Buckets::begin_backward(bool is_last) {
  sends_ = is_last || shards_gradients();
  if (shards_gradients())
    for (auto& bucket : buckets_) finish_reduction(*bucket);
}

void Buckets::start_reduction(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  for (auto* p : bucket.parameters) {
    p->collect_gradient();
    // Nothing here touched it (an expert without tokens); another rank's gradient still counts.
    bool overwrite = false;
    auto& gradient = p->gradient_buffer(overwrite);
    if (overwrite) gradient.zero_();
  }
  at::Tensor sent = options_.reduce_in_bf16 ? bucket.gradient.to(at::kBFloat16) : bucket.gradient;
  if (options_.zero == 0) {
    bucket.arriving = sent;
    bucket.reduction = bucket.group->start_all_reduce(sent);
  } else {
    // Without sharding the sum lands where this rank's slice lies; nobody else reads that part of this rank's tensor.
    bucket.arriving = shards_gradients() || options_.reduce_in_bf16 ? at::empty({bucket.chunk()}, sent.options()) : bucket.own_gradient;
    bucket.reduction = bucket.group->start_reduce_scatter(bucket.arriving, sent);
    bucket.sent = sent;
  }
  bucket.is_reducing = bucket.is_done = true;
}

void Buckets::finish_reduction(Bucket& bucket) {
  if (!bucket.is_reducing) return;
  const at::NoGradGuard no_grad;
  bucket.reduction.wait();
  bucket.is_reducing = false;
  for (const auto* p : bucket.parameters)
    if (p->value.grad().defined())
      throw base::NumericError("the gradient of {} came after it was sent; this is an error in ingot", p->name);
  const auto& target = options_.zero == 0 ? bucket.gradient : bucket.own_gradient;
  if (!bucket.arriving.is_same(target)) bucket.holds_sum ? target.add_(bucket.arriving) : target.copy_(bucket.arriving);
  bucket.arriving.reset();
  bucket.sent.reset();
  if (!shards_gradients()) return;
  bucket.holds_sum = true;
  drop_storage(bucket.gradient);
  for (auto* p : bucket.parameters) p->drop_gradient();
}

void Buckets::release(int64_t layer) {
  for (auto& bucket : buckets_)
    if (bucket->comes_and_goes && bucket->first_layer == layer && layer >= 0) release_values(*bucket);
}

void Buckets::after_backward(int64_t layer) {
  release(layer);
  for (auto& bucket : buckets_) {
    if (!sends_ || bucket->first_layer < layer || (options_.is_pipelined && shards_gradients())) continue;
    // Whole gradients live no longer than it takes to send them: the bucket before this one must be through.
    if (bucket->is_reducing && shards_gradients()) finish_reduction(*bucket);
    else if (!bucket->is_done) start_reduction(*bucket);
  }
}

void Buckets::finish_backward() {
  if (!sends_) return;
  for (auto& bucket : buckets_)
    if (!bucket->is_done) start_reduction(*bucket);
  for (auto& bucket : buckets_) bucket->is_done = false;
}

// Not before: the other end of a pipeline may need messages of this rank to come as far.
void Buckets::finish_step() {
  for (auto& bucket : buckets_) finish_reduction(*bucket);
}

}  // namespace ingot::parallel
