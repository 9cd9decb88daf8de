// One rank's part of a layer or of blocks under a way of spreading them over ranks (schedule/layout.h): the models' own parts, with the
// sums of their gradients. The same on real ranks, which measure it, and on a counting device, which traces it.
#pragma once

#include <memory>

#include "comm/world.h"
#include "mesh/groups.h"
#include "models/model.h"
#include "parallel/buckets.h"
#include "schedule/layout.h"

namespace ingot::bench {

/// The settings of `layout`.
mesh::ParallelConfig axes_of(const schedule::Layout& layout);

class RankLayer {
 public:
  /// Called by all ranks of `world`, which must outlive it. `layout` is one that schedule::check lets pass.
  RankLayer(const schedule::Layout& layout, comm::World& world, at::Device device);
  ~RankLayer();
  RankLayer(const RankLayer&) = delete;
  RankLayer& operator=(const RankLayer&) = delete;

  at::Tensor forward();
  /// Of what forward() returned; gradients end as sums over the ranks that hold the same weights.
  void backward(const at::Tensor& out);

 private:
  void make_block();
  void make_part();
  void fill();
  comm::Group& sum_group(const layers::Parameter& parameter);
  layers::ParameterList& parameters() { return model_ ? model_->parameters() : list_; }

  schedule::Layout what_;
  mesh::ParallelConfig axes_;
  mesh::Groups groups_;
  at::Device device_;
  at::ScalarType dtype_;
  models::ModelConfig config_;
  parallel::Layout layout_;
  int64_t last_layer_ = 0;
  // Whole blocks are the middle stage of a pipeline; of a layer alone there is the part.
  std::unique_ptr<models::Model> model_;
  layers::ParameterList list_;
  std::unique_ptr<models::BlockContext> block_;
  std::unique_ptr<models::TokenMixer> mixer_;
  std::unique_ptr<models::FeedForward> feed_forward_;
  std::unique_ptr<parallel::Buckets> buckets_;
  std::unique_ptr<models::LayerHooks> hooks_;
  models::ForwardContext context_;
  at::Tensor x_, grad_;
};

}  // namespace ingot::bench
