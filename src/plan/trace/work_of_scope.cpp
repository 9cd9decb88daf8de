#include "plan/trace/work_of_scope.h"

#include "plan/work_names.h"

namespace ingot::plan {

using Rule = base::Work::Rule;

WorksOfScopes::WorksOfScopes(const device::Trace& trace) : trace_(trace) {
  // A scope comes after the one around it.
  for (size_t i = 0; i < trace.scopes.size(); ++i) {
    const auto& scope = trace.scopes[i];
    Frame frame = scope.parent < 0 ? Frame{} : frames_[static_cast<size_t>(scope.parent)];
    frame.is_backward = trace.is_backward(static_cast<int32_t>(i));
    const auto& work = scope.work;
    if (scope.is_backward && scope.name == "backward") {
      // Of a second run it is the forward part that counts as such, not its backward pass.
      frame.is_again = false;
    } else if (work.rule == Rule::forward || work.rule == Rule::backward) {
      frame = Frame{.is_backward = work.rule == Rule::backward};
    } else if (work.rule == Rule::again) {
      frame = Frame{.rule = Rule::passes, .is_again = true, .is_backward = true};
    } else if (work.rule != Rule::passes && !(frame.has_kind && frame.rule == Rule::owns)) {
      frame.rule = work.rule;
      frame.has_kind = true;
      frame.kind = work.kind;
    }
    frames_.push_back(frame);
  }
}

TracedWork WorksOfScopes::of(const device::Trace::Operation& operation) const {
  const auto& frame = frames_[static_cast<size_t>(operation.scope)];
  const auto name = trace_.name_of(operation);
  TracedWork work{.is_backward = frame.is_backward && !frame.is_again};
  if (frame.is_again) work.kind = WorkKind::recomputation;
  else if (frame.has_kind) work.kind = frame.rule == Rule::shares && is_gemm(name) ? WorkKind::matmul : frame.kind;
  else work.kind = kind_of_operator(name).value_or(WorkKind::elementwise);  // what nobody names moves elements
  return work;
}

}  // namespace ingot::plan
