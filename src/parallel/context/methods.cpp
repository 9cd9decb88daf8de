#include "base/error.h"
#include "base/text.h"
#include "parallel/context/attention_method.h"
#include "parallel/context/state_method.h"

namespace ingot::parallel {
namespace {

template <class Method, class Name>
const Method& named(const std::vector<const Method*>& methods, const std::string& setting, const std::string& name, const Name& name_of) {
  std::vector<std::string> known;
  for (const auto* method : methods) {
    if (name_of(*method) == name) return *method;
    known.push_back(name_of(*method));
  }
  throw base::ConfigError("unknown {} '{}'; known are {}{}", setting, name, base::join(known, ", "), base::did_you_mean(name, known));
}

}  // namespace

const std::vector<const AttentionMethod*>& attention_methods() {
  static const std::vector<const AttentionMethod*> all = {&kRing, &kBidirectionalRing, &kAllGather, &kUlysses};
  return all;
}

const AttentionMethod& attention_method(const std::string& name) {
  return named(attention_methods(), "parallel.context_method", name, [](const AttentionMethod& m) -> std::string { return m.name; });
}

const std::vector<const StateMethod*>& state_methods() {
  static const std::vector<const StateMethod*> all = {&kLasp2, &kLasp1, &kZeco};
  return all;
}

const StateMethod& state_method(const std::string& name) {
  return named(state_methods(), "parallel.state_method", name, [](const StateMethod& m) -> std::string { return m.name(); });
}

}  // namespace ingot::parallel
