// Expert parallelism: ranks hold some of the experts each, and `slices` neighbours share each expert by its inner width. Rows
// travel to all slices of their expert with one all_to_all, their results come back with another and are added up; backward
// the same the other way round. For every row and slice that leaves it a rank sends 2 x hidden elements and 1 fp32 number, and
// receives as many back, per layer and microbatch, forward and backward together.
#pragma once

#include "comm/group.h"
#include "layers/experts.h"

namespace ingot::parallel {

struct ExpertAxis {
  int rank = 0, size = 1;        // which of the equal shares of the experts
  int slice = 0, slices = 1;     // which part of each one's inner width
  comm::Group* group = nullptr;  // ranks with all experts and slices, slices fastest; null while a model is only described

  bool is_on() const { return size * slices > 1; }
  /// What layers::experts takes.
  layers::StartExpertExchange exchange() const;
};

}  // namespace ingot::parallel
