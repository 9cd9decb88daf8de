// Initial values of parameters where they lie. The same bits on every device: a GPU's kernel computes what tensor::initialise does, whose
// normals are made of IEEE operations alone (base/random_functions.h).
#pragma once

#include <vector>

#include "device/aten.h"
#include "kernels/gpu/initialise_problem.h"
#include "tensor/initialise.h"

namespace ingot::kernels {

/// Fills `out` [box.extent], in fp32, bf16 or fp64 and with any strides: what tensor::initialise gives for `box` of the tensor, in fp32, is
/// converted. A GPU's kernel where there is one, which then runs on the current stream; elsewhere the host fills a copy.
void initialise(at::Tensor out, uint64_t seed, const tensor::LogicalTensor& tensor, const tensor::Box& box, const tensor::Initial& initial);

/// The launches that fill `out` with normals on a GPU.
std::vector<gpu::InitialiseProblem> fill_normal_problems(const at::Tensor& out, uint64_t seed, const tensor::LogicalTensor& tensor,
                                                         const tensor::Box& box, const tensor::Initial& initial);

}  // namespace ingot::kernels
