// What kind of work the pieces of a training step are, by the names that profilers see: those of our scopes (base/work_scope.h), of
// functions with gradients of their own (kernels/differentiable.h), and of torch's operators.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ingot::bench {

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

/// How a name counts.
struct WorkName {
  enum class Rule {
    is,        // work of `kind`; so are torch's operators below it, but not scopes of a kind of their own
    owns,      // the same, and whatever is below counts with it
    shares,    // the same, but matrix products below it are `products`
    passes,    // no work of its own: what is below counts as if it were not there
    forward,   // passes; and what is below belongs to the forward pass
    backward,  // to the backward pass, and to no scope above
    again,     // to recomputation
  };
  Rule rule = Rule::is;
  WorkKind kind = WorkKind::unattributed;
};

/// Of a scope or function; null when nobody named it.
const WorkName* find_scope(std::string_view name);
/// Of one of torch's operators ("aten::mm") that no scope claims; null when nobody named it.
const WorkName* find_operator(std::string_view name);
/// Whether an operator multiplies matrices.
bool is_product(std::string_view operator_name);
/// The kind of a kernel of layers/workload.h, where predictions are by its name.
WorkKind kind_of_kernel(const std::string& name);

}  // namespace ingot::bench
