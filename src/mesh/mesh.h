// The one owner of rank arithmetic: which rank stands where on which axis, and who shares an axis with it. Pure functions of
// the sizes and a rank; groups.h makes communication groups of the answers.
//
// Ranks are numbered with tensor fastest, then sequence, data, pipeline, so that the axes that talk most lie within a machine.
// tensor_sequence (TSP) takes tensor's place: one of the two is 1. The mixture of experts folds the ranks of a pipeline stage
// anew: expert_tensor (slices of one expert) runs through neighbours, then expert, and the ranks that hold the same
// (expert_data) are a stride of their product apart.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/config.h"

namespace ingot::mesh {

enum class Axis { pipeline, data, context, tensor, tensor_sequence, expert, expert_tensor, expert_data };
const char* name_of(Axis axis);

class Mesh {
 public:
  /// A mesh of one rank.
  Mesh() : Mesh(ParallelConfig{}, 0, 1) {}
  /// Throws ConfigError when the sizes do not make up `world`, naming the sizes that would work.
  Mesh(const ParallelConfig& config, int rank, int world);

  int rank() const { return rank_; }
  int world() const { return world_; }
  int size(Axis axis) const;
  /// Where this rank, or another, stands on the axis: 0 … size - 1.
  int position(Axis axis) const { return position_of(rank_, axis); }
  int position_of(int rank, Axis axis) const;
  /// World ranks that differ from this one in `axes` alone, in the order of their numbers; itself included.
  std::vector<int> members(const std::vector<Axis>& axes) const;
  /// The same without the stages between the pipeline's first and last.
  std::vector<int> members_at_ends(const std::vector<Axis>& axes) const;
  /// Whose ranks have other tokens: data and sequence, and tensor_sequence where it takes tensor's place.
  std::vector<Axis> token_axes() const;
  /// Whose ranks have other parts of each matrix.
  Axis weight_axis() const { return size(Axis::tensor_sequence) > 1 ? Axis::tensor_sequence : Axis::tensor; }

  /// "pipeline 2 x data 2 x tensor 2", axes of size 1 left out; "1 rank" for one.
  std::string describe() const;
  /// A line for each rank with its position on every axis that is larger than 1.
  std::string rank_map() const;

 private:
  int stride(Axis axis) const;

  int rank_, world_;
  int pipeline_, data_, context_, tensor_, tensor_sequence_, expert_, expert_tensor_;
};

}  // namespace ingot::mesh
