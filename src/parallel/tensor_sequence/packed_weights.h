// A rank's part of a layer's weights as one message, and what another rank sees of it: parameters whose values lie in the message
// and whose gradients come to lie in another one, so that every layer computes with them as with its own.
#pragma once

#include <vector>

#include "layers/parameter.h"

namespace ingot::parallel {

class PackedWeights {
 public:
  /// The parts that this rank owns.
  explicit PackedWeights(std::vector<layers::Parameter*> own);

  int64_t bytes() const { return bytes_; }
  int64_t elements() const { return elements_; }
  /// uint8 [bytes]: the own values; an empty one for another rank's.
  at::Tensor pack() const;
  at::Tensor empty_message() const;
  /// [elements] in fp32 (fp64), not initialised.
  at::Tensor empty_gradients() const;

  /// Parameters like the own ones, in the same order, with values in `message`. `shapes`: of another rank's parts where they differ from
  /// the own ones, though not in sum. With `gradients` they can be trained: what backward leaves there belongs to finish().
  std::vector<layers::Parameter> view(const at::Tensor& message, const std::vector<tensor::Shape>& shapes = {},
                                      const at::Tensor& gradients = {}) const;
  /// After backward: moves what autograd left into the gradients, and zeroes those that nothing came to.
  static void finish(std::vector<layers::Parameter>& viewed);
  /// Adds gradients of the own parts, [elements].
  void accumulate(const at::Tensor& gradients) const;

 private:
  std::vector<size_t> order() const;
  std::vector<layers::Parameter*> own_;
  int64_t bytes_ = 0, elements_ = 0;
};

}  // namespace ingot::parallel
