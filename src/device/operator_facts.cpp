#include "device/operator_facts.h"

#include <memory>
#include <unordered_map>

#include "device/operation_cost.h"

namespace ingot::device {
namespace {

bool holds_tensors(const c10::TypePtr& type) {
  return type->isSubtypeOf(*c10::TensorType::get()) || type->isSubtypeOf(*c10::ListType::ofTensors());
}

bool is_generator(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return (optional ? optional->getElementType() : type)->kind() == c10::TypeKind::GeneratorType;
}

}  // namespace

OperatorFacts::OperatorFacts(const c10::OperatorHandle& op) {
  const auto& of = op.operator_name();
  full_name = of.overload_name.empty() ? of.name : of.name + "." + of.overload_name;
  name = of.name;
  if (name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_') name.pop_back();
  waits = waits_for_device(name, of.overload_name);
  rule = shape_rule(full_name);
  for (const auto key : {c10::DispatchKey::Meta, c10::DispatchKey::CompositeExplicitAutograd,
                         c10::DispatchKey::CompositeExplicitAutogradNonFunctional, c10::DispatchKey::CompositeImplicitAutograd})
    has_meta = has_meta || op.hasKernelForDispatchKey(key);
  can_wait = !waits && (rule || has_meta);
  for (const auto& argument : op.schema().arguments()) {
    is_written.push_back(argument.alias_info() && argument.alias_info()->isWrite());
    is_out.push_back(argument.is_out());
    can_wait = can_wait && !is_generator(argument.type());
  }
  for (const auto& result : op.schema().returns()) can_wait = can_wait && holds_tensors(result.type());
}

const OperatorFacts& facts_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OperatorFacts>> known;
  auto& facts = known[&op.schema()];
  if (!facts) facts = std::make_unique<OperatorFacts>(op);
  return *facts;
}

}  // namespace ingot::device
