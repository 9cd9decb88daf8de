#include "plan/trace/work_of_scope.h"

namespace ingot::plan {

using Rule = WorkName::Rule;

WorksOfScopes::WorksOfScopes(const device::Trace& trace) : trace_(trace) {
  // A scope comes after the one around it.
  for (size_t i = 0; i < trace.scopes.size(); ++i) {
    const auto& scope = trace.scopes[i];
    Frame frame = scope.parent < 0 ? Frame{} : frames_[static_cast<size_t>(scope.parent)];
    frame.is_backward = trace.is_backward(static_cast<int32_t>(i));
    const auto* found = find_scope(scope.name);
    if (scope.is_backward && scope.name == "backward") {
      // Of a second run it is the forward part that counts as such, not its backward pass.
      frame.is_again = false;
    } else if (found && (found->rule == Rule::forward || found->rule == Rule::backward)) {
      frame = Frame{.is_backward = found->rule == Rule::backward};
    } else if (found && found->rule == Rule::again) {
      frame = Frame{.rule = Rule::passes, .is_again = true, .is_backward = true};
    } else if (found && found->rule != Rule::passes && !(frame.has_kind && frame.rule == Rule::owns)) {
      frame.rule = found->rule;
      frame.has_kind = true;
      frame.kind = found->kind;
    }
    frames_.push_back(frame);
  }
}

TracedWork WorksOfScopes::of(const device::Trace::Operation& operation) const {
  const auto& frame = frames_[static_cast<size_t>(operation.scope)];
  const auto name = trace_.name_of(operation);
  TracedWork work{.is_backward = frame.is_backward && !frame.is_again};
  if (frame.is_again) work.kind = WorkKind::recomputation;
  else if (frame.has_kind) work.kind = frame.rule == Rule::shares && is_product(name) ? WorkKind::products : frame.kind;
  else if (const auto* found = find_operator(name)) work.kind = found->kind;
  return work;
}

}  // namespace ingot::plan
