// Data parallelism and ZeRO: replicas compute the gradients of their own sequences; sums travel while backward still runs.
//
// Parameters lie in flat buffers of whole layers, in the order in which backward finishes them (head, last block, … embedding), each
// tensor aligned to kAlignment elements. A buffer is cut into buckets of the size asked for, wherever tensors end, each padded to a
// multiple of the group; a bucket is what one collective reduces or gathers. With p ranks and N such elements
//
//   zero 0  every rank holds all and repeats the whole update            all_reduce              2 (p-1)/p N * 4 bytes
//   zero 1  optimizer state and update: 1/p of each bucket               reduce_scatter          (p-1)/p N * 4
//                                                                        and all_gather          (p-1)/p N * e
//   zero 2  gradients, too: a buffer's lives until it is summed          the same, the first once per microbatch
//   zero 3  weights, too (matrices, embedding and head): gathered        reduce_scatter once, all_gather twice (embedding and
//           for each block before use, dropped after                     head: once) per microbatch
//
// are sent, and as many received, per rank and step; e = bytes of a weight (4 or 2), gradients travel in fp32 unless
// Options::reduce_in_bf16. Sums are the same bits on all ranks and in every run, whatever the bucket size.
//
// With Options::reproducible they are the same bits for any number of ranks, as long as the microbatches are the same: what a microbatch
// adds is rounded to multiples of 2^-48 (parallel/exact_sum.h) and summed in fp64, in which such sums are exact below 32 in any order. It
// takes 8 bytes more per element of a gradient that is kept, and gradients travel in fp64.
//
// One thread at a time; all ranks of a group make the same calls. Parameters and groups must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/group.h"
#include "layers/parameter.h"
#include "parallel/shard.h"
#include "parallel/storage.h"

namespace ingot::parallel {

class Buckets : public layers::GradientMemory {
 public:
  /// Scopes of work (base/work_scope.h) in which it allocates and sends.
  static constexpr const char *kGatherScope = "gather_weights", *kReduceScope = "reduce_gradients";
  static constexpr int64_t kAlignment = 32;  // elements: 128 bytes of fp32, 64 of bf16

  struct Options {
    int64_t bucket_bytes = 0;  // of gradients, at least, and less than twice as many; 0: of each layer one
    int zero = 0;
    bool reduce_in_bf16 = false;
    bool is_pipelined = false;  // microbatches overlap: sharded gradients are sent when one has gone through the whole stage
    bool reproducible = false;  // not with the two before it
  };
  /// The ranks over which a parameter's gradient is summed.
  using GroupOf = std::function<comm::Group&(const layers::Parameter&)>;

  /// Moves the gradients, and with ZeRO the values, of all trained parameters into buckets. They must be allocated and filled.
  Buckets(layers::ParameterList& parameters, const GroupOf& group_of, const Options& options);
  ~Buckets() override;
  Buckets(const Buckets&) = delete;

  /// What this rank's optimizer updates.
  std::vector<Shard> shards() const;
  /// Which elements of what it holds of each trained parameter a rank with these parameters updates, by the ranks of their groups: what
  /// shards() would say there. Of the parameters only shapes and dtypes count.
  using Slices = std::unordered_map<std::string, std::vector<std::pair<int, tensor::Range>>>;  // by name: rank, elements
  static Slices slices_of(layers::ParameterList& parameters, const GroupOf& group_of, const Options& options);

  // In the order of a step. Layers are those of Parameter::layer.
  void begin_step();
  /// The values of `layer` are here, and those of the next on their way.
  void before_forward(int64_t layer);
  void after_forward(int64_t layer);
  /// Before a microbatch makes its first gradients (the head does so in the forward pass). `is_last`: of the step's; without
  /// sharded gradients only that one sends. Waits for what the microbatch before has sent.
  void begin_backward(bool is_last);
  void before_backward(int64_t layer);
  /// The gradients of `layer` and of every one behind it are complete.
  void after_backward(int64_t layer);
  /// The weights of `layer` are no longer needed in this microbatch; part of after_backward.
  void release(int64_t layer);
  /// All of this microbatch's backward is over: starts what has not been started.
  void finish_backward();
  /// Waits: gradients are sums over the group.
  void finish_step();
  /// The optimizer has written its slices: starts to send them to everyone. before_forward waits for what it needs.
  void publish();
  /// Waits for all that publish() sent.
  void complete_values();

  /// Whether the value of a parameter is here all the time; else it comes and goes with its layer.
  bool keeps(const layers::Parameter& parameter) const;
  /// Of buckets.
  size_t count() const;
  /// Padded elements of all of them: the N of the table.
  int64_t elements() const;
  void provide(layers::Parameter& parameter) override;

 private:
  struct Bucket;
  struct Buffer;
  struct Open;
  /// Buffers without memory, in the order of backward.
  static std::vector<std::unique_ptr<Buffer>> lay_out(layers::ParameterList& parameters, const GroupOf& group_of, const Options& options);
  static std::unique_ptr<Buffer> close(Open open, const Options& options);
  void allocate(Buffer& buffer);
  void cut(Buffer& buffer) const;
  void collect(Buffer& buffer);
  void add_exactly(Buffer& buffer);
  at::Tensor to_send(const Bucket& bucket) const;
  void start_reduction(Buffer& buffer);
  void finish_reduction(Buffer& buffer);
  void start_gather(Buffer& buffer);
  void finish_gather(Buffer& buffer);
  void release_values(Buffer& buffer);
  bool shards_gradients() const { return options_.zero >= 2; }

  Options options_;
  std::vector<std::unique_ptr<Buffer>> buffers_;  // in the order of backward
  std::unordered_map<const layers::Parameter*, Buffer*> buffer_of_;
  int64_t last_block_ = -1;
  bool sends_ = true;  // this microbatch
};

}  // namespace ingot::parallel
