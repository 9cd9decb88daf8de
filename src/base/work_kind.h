// What kind of work the pieces of a training step are: how measured steps (bench/iteration.h) and predicted ones are taken apart. Whoever
// names a piece of work (base/work_scope.h, kernels/differentiable.h, kernels/operator.h) says its kind there and nowhere else.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ingot::base {

enum class WorkKind {
  matmul,            // of linear layers and experts
  attention,         // with rotation, and CCA's mixing of latents
  linear_attention,  // with its convolutions, feature maps and gates
  norms,             // with the joins of the residual stream
  activations,
  embedding,
  head,           // vocabulary GEMMs and loss; their gradients are made in the forward pass
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

/// How a piece of work counts, and what is inside of it.
struct Work {
  enum class Rule {
    is,        // work of `kind`; so are torch's operators below it, but not pieces of a kind of their own
    owns,      // the same, and whatever is below counts with it
    shares,    // the same, but matmuls below it are `matmul`
    passes,    // no work of its own: what is below counts as if it were not there
    forward,   // passes; and what is below belongs to the forward pass
    backward,  // to the backward pass, and to nothing above
    again,     // to recomputation
  };
  Rule rule = Rule::passes;
  WorkKind kind = WorkKind::unattributed;

  constexpr Work() = default;
  constexpr Work(WorkKind is) : rule(Rule::is), kind(is) {}
  constexpr Work(Rule rule, WorkKind kind = WorkKind::unattributed) : rule(rule), kind(kind) {}
};
constexpr Work owns(WorkKind kind) { return {Work::Rule::owns, kind}; }
constexpr Work shares(WorkKind kind) { return {Work::Rule::shares, kind}; }

}  // namespace ingot::base
