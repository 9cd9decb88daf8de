// What kind of work the pieces of a training step are: how measured steps (bench/iteration.h) and predicted ones are taken apart.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ingot::plan {

enum class WorkKind {
  products,          // of linear layers and experts
  attention,         // with rotation, and CCA's mixing of latents
  linear_attention,  // with its convolutions, feature maps and gates
  norms,             // with the joins of the residual stream
  activations,
  embedding,
  head,           // vocabulary products and loss; their gradients are made in the forward pass
  routing,        // router, and dispatch of tokens to experts
  recomputation,  // whatever is run a second time
  gradient_norm,
  adamw,          // with the balancing of experts
  muon,           // momentum, Newton-Schulz, and the update that follows
  communication,  // messages and waiting for other ranks
  data,           // waiting for a batch, and bringing it to the device
  elementwise,    // additions, copies and conversions between these, sums of gradients
  watching,       // what the watch itself takes, between the moments that belong to the others
  unattributed,   // operators that nobody named, and the program between operators
};
inline constexpr size_t kWorkKinds = static_cast<size_t>(WorkKind::unattributed) + 1;

const char* name_of(WorkKind kind);   // "linear_attention", for programs
const char* title_of(WorkKind kind);  // for people
std::vector<WorkKind> all_work_kinds();
std::optional<WorkKind> work_kind_named(const std::string& name);

/// The kind of a kernel of layers/workload.h, where predictions are by its name.
WorkKind kind_of_kernel(const std::string& name);

}  // namespace ingot::plan
