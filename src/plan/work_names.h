// The kinds of work (plan/work_kind.h) by the names that profilers see: those of our scopes (base/work_scope.h), of functions with
// gradients of their own (kernels/differentiable.h), and of torch's operators.
#pragma once

#include <string_view>

#include "plan/work_kind.h"

namespace ingot::plan {

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

}  // namespace ingot::plan
