// Data parallelism: replicas hold all weights, each computes the gradients of its own sequences, and the sums travel while
// backward still runs.
//
// Gradients lie in a few flat buckets, in the order in which backward finishes them (head, last block, … embedding). As soon as
// the last layer of a bucket is done, its all_reduce starts; finish() waits for what is still under way. Sums are the same
// bits on all ranks and in every run, whatever the bucket size.
//
// Bytes a rank sends and receives per step: 2 (p - 1) / p of the gradients' (4 a parameter; 8 in fp64), p ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "layers/parameter.h"

namespace ingot::parallel {

class GradientBuckets {
 public:
  /// Places the gradients of all trained parameters into buckets of at least `bucket_bytes` (a bucket ends where a layer
  /// does). List and group must outlive it; the parameters must be allocated.
  GradientBuckets(layers::ParameterList& parameters, comm::Group& group, int64_t bucket_bytes);
  ~GradientBuckets();

  /// Backward has come to the end of `layer` (Parameter::layer counts; every parameter behind it is done, too) in the last
  /// microbatch of a step: starts what is complete.
  void layer_done(int64_t layer);
  /// All of backward is over: starts the rest and waits for everything. Afterwards gradients are sums over the group.
  void finish();

  size_t count() const { return buckets_.size(); }

 private:
  struct Bucket {
    std::vector<layers::Parameter*> parameters;
    int64_t first_layer = 0;  // the one that backward finishes last
    at::Tensor flat;
    bool is_started = false;
    comm::Work work;
  };
  void close(Bucket bucket);
  void start(Bucket& bucket);

  comm::Group& group_;
  std::vector<Bucket> buckets_;  // in the order of backward
};

/// The smallest message, in bytes, with which an all_reduce of this group comes near its best bandwidth (the knee of the
/// curve): measured here in a fraction of a second, the same answer on all ranks. 0 for a group of one.
int64_t measure_bandwidth_knee(comm::Group& group, at::Device device);

}  // namespace ingot::parallel
