#include "schedule/layout.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace ingot::schedule {
namespace {

using base::ConfigError;

template <class Value>
struct Named {
  Value value;
  const char* name;
};

constexpr Named<Method> kMethods[] = {{Method::tp, "tp"},       {Method::megatron_sp, "megatron-sp"},
                                      {Method::sp, "sp"},       {Method::tp_sp, "tp+sp"},
                                      {Method::tsp, "tsp"},     {Method::fsdp_cp, "fsdp+cp"},
                                      {Method::ring, "ring"},   {Method::ulysses, "ulysses"},
                                      {Method::lasp1, "lasp1"}, {Method::lasp2, "lasp2"},
                                      {Method::zeco, "zeco"}};
constexpr Named<Layer> kLayers[] = {
    {Layer::attention, "attention"}, {Layer::mlp, "mlp"}, {Layer::linear_attention, "linear_attention"}, {Layer::block, "block"}};
constexpr Named<Pass> kPasses[] = {{Pass::forward, "forward"}, {Pass::backward, "backward"}, {Pass::both, "both"}};

template <class Value, size_t count>
std::string find_name(const Named<Value> (&all)[count], Value value) {
  for (const auto& named : all)
    if (named.value == value) return named.name;
  return {};
}

template <class Value, size_t count>
Value find_value(const Named<Value> (&all)[count], const std::string& name, const char* what) {
  std::vector<std::string> names;
  for (const auto& named : all) {
    if (named.name == name) return named.value;
    names.emplace_back(named.name);
  }
  throw ConfigError("unknown {} '{}'{}; there are {}", what, name, base::did_you_mean(name, names), base::join(names, ", "));
}

void divides(int64_t divisor, int64_t n, const char* what, const Layout& layout) {
  if (divisor == 0 || n % divisor != 0)
    throw ConfigError("{} over {} ranks: {} = {} is not a multiple of {}", layout.label(), layout.ranks, what, n, divisor);
}

void check_sizes(const Layout& layout) {
  const auto& s = layout.sizes;
  for (const auto& [value, what] : {std::pair{s.hidden, "hidden"},
                                    {s.heads, "heads"},
                                    {s.kv_heads, "kv_heads"},
                                    {s.head_dim, "head_dim"},
                                    {s.ffn, "ffn"},
                                    {s.batch, "batch"},
                                    {s.seq, "seq"},
                                    {layout.head_buckets, "head_buckets"},
                                    {int64_t{layout.ranks}, "ranks"},
                                    {int64_t{layout.blocks}, "blocks"}}) {
    if (value < 1 || value > int64_t{1} << 40) throw ConfigError("{} = {}: it must be from 1 to 2^40", what, value);
  }
  s.element_bytes();
  divides(s.kv_heads, s.heads, "heads", layout);
  if (layout.method == Method::tp_sp && (layout.tensor_ranks < 1 || layout.ranks % layout.tensor_ranks != 0))
    throw ConfigError("tp+sp: tensor_ranks = {} does not divide {} ranks", layout.tensor_ranks, layout.ranks);
}

bool has_attention(const Layout& layout) { return layout.layer != Layer::mlp; }

void check_folded(const Layout& layout) {
  const auto& s = layout.sizes;
  const int64_t p = layout.ranks;
  divides(p, s.heads, "heads", layout);
  if (s.kv_heads % p != 0 && (p % s.kv_heads != 0 || s.kv_width() % p != 0))
    throw ConfigError("tsp over {} ranks: kv_heads = {} must be a multiple or a divisor of the ranks", p, s.kv_heads);
  divides(p, s.ffn, "ffn", layout);
}

}  // namespace

std::string name_of(Method method) { return find_name(kMethods, method); }
std::string name_of(Layer layer) { return find_name(kLayers, layer); }
std::string name_of(Pass pass) { return find_name(kPasses, pass); }
Method method_from_name(const std::string& name) { return find_value(kMethods, name, "method"); }
Layer layer_from_name(const std::string& name) { return find_value(kLayers, name, "layer"); }
Pass pass_from_name(const std::string& name) { return find_value(kPasses, name, "pass"); }

const std::vector<Method>& all_methods() {
  static const std::vector<Method> methods = [] {
    std::vector<Method> all;
    for (const auto& named : kMethods) all.push_back(named.value);
    return all;
  }();
  return methods;
}

int64_t Sizes::element_bytes() const {
  if (dtype == "bf16") return 2;
  if (dtype == "fp32") return 4;
  if (dtype == "fp64") return 8;
  throw ConfigError("dtype '{}': it is bf16, fp32 or fp64", dtype);
}

int64_t Sizes::wide_bytes() const { return std::max<int64_t>(4, element_bytes()); }

std::string Layout::label() const {
  if (method != Method::tp_sp) return name_of(method);
  return fmt::format("tp{}+sp{}", tensor_size(), sequence_size());
}

int Layout::tensor_size() const {
  if (method == Method::tp || method == Method::megatron_sp) return ranks;
  return method == Method::tp_sp ? tensor_ranks : 1;
}

int Layout::sequence_size() const { return ranks / tensor_size(); }

bool Layout::is_linear() const {
  return layer == Layer::linear_attention || method == Method::lasp1 || method == Method::lasp2 || method == Method::zeco;
}

void check(const Layout& layout) {
  check_sizes(layout);
  const auto& s = layout.sizes;
  const bool is_state_method = layout.method == Method::lasp1 || layout.method == Method::lasp2 || layout.method == Method::zeco;
  if (is_state_method && layout.layer == Layer::attention)
    throw ConfigError("{} has no schedule for softmax attention; layer = linear_attention, mlp or block, or method = sp, ring, ulysses",
                      name_of(layout.method));
  if (!is_state_method && layout.sequence_size() > 1 && layout.layer == Layer::linear_attention)
    throw ConfigError("{} has no schedule for linear attention; method = lasp1, lasp2 or zeco", name_of(layout.method));
  if (layout.layer != Layer::block && (layout.blocks > 1 || layout.recomputes))
    throw ConfigError("layer = {}: only whole blocks follow one another or are recomputed", name_of(layout.layer));
  if (layout.method == Method::tsp) check_folded(layout);
  const int64_t tensor = layout.tensor_size(), sequence = layout.sequence_size();
  divides(tensor, s.heads, "heads", layout);
  if (has_attention(layout) && !layout.is_linear()) divides(tensor, s.kv_heads, "kv_heads", layout);
  divides(tensor, s.ffn, "ffn", layout);
  if (layout.method == Method::megatron_sp) divides(tensor, s.tokens(), "batch x seq", layout);
  divides(sequence, s.seq, "seq", layout);
  const bool cuts_twice = layout.zigzag && sequence > 1 && has_attention(layout) && !is_state_method && layout.method != Method::ulysses;
  if (cuts_twice) divides(2 * sequence, s.seq, "seq", layout);
  if (layout.method == Method::ulysses && has_attention(layout)) {
    divides(sequence, s.heads, "heads", layout);
    if (s.kv_heads % sequence != 0 && sequence % s.kv_heads != 0)
      throw ConfigError("ulysses over {} ranks: kv_heads = {} must be a multiple or a divisor of the ranks", sequence, s.kv_heads);
  }
}

std::vector<int> factorisations(int ranks) {
  std::vector<int> tensor;
  for (int t = 2; t < ranks; ++t)
    if (ranks % t == 0) tensor.push_back(t);
  return tensor;
}

}  // namespace ingot::schedule
