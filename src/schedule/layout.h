// What is to be laid out over ranks: a layer of given sizes, a method, and how many ranks. Values; see docs/parallel-methods.md for
// what each method does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ingot::schedule {

/// megatron_sp: tensor parallelism with tokens sharded between layers. sp: tokens sharded everywhere, weights whole (what the TSP paper
/// calls SP, others context parallelism), keys and values gathered.
enum class Method : uint8_t { tp, megatron_sp, sp, tp_sp, tsp, fsdp_cp, ring, ulysses, lasp1, lasp2, zeco };
enum class Layer : uint8_t { attention, mlp, linear_attention, block };
enum class Pass : uint8_t { forward, backward, both };

/// As on the command line: "tp", "megatron-sp", "sp", "tp+sp", "tsp", "fsdp+cp", …; "forward", "backward", "both".
std::string name_of(Method method);
std::string name_of(Layer layer);
std::string name_of(Pass pass);
/// Throw ConfigError with the nearest name.
Method method_from_name(const std::string& name);
Layer layer_from_name(const std::string& name);
Pass pass_from_name(const std::string& name);
const std::vector<Method>& all_methods();

struct Sizes {
  int64_t hidden = 4096, heads = 32, kv_heads = 32, head_dim = 128, ffn = 16384, batch = 1, seq = 8192;
  int64_t value_dim = 0;  // of a head of linear attention; 0: head_dim. Its keys have head_dim, and all heads their own
  std::string dtype = "bf16";

  int64_t tokens() const { return batch * seq; }
  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t element_bytes() const;
  /// Of accumulators and weight gradients: 4, and 8 in fp64.
  int64_t wide_bytes() const;
  /// Elements of the projections of attention, and of the gated MLP.
  int64_t attention_weights() const { return hidden * (2 * q_width() + 2 * kv_width()); }
  int64_t mlp_weights() const { return 3 * hidden * ffn; }
};

struct Layout {
  Method method = Method::tp;
  Layer layer = Layer::block;  // under lasp1, lasp2 and zeco the attention of a block is linear
  Pass pass = Pass::both;
  Sizes sizes;
  int ranks = 1;
  int tensor_ranks = 1;  // tp+sp alone: neighbours that share one sequence shard

  int blocks = 1;               // of Layer::block, one after the other
  bool recomputes = false;      // of Layer::block: forward keeps a block's input alone; backward runs it again, messages included
  bool zigzag = true;           // softmax attention over a sequence axis: 2 chunks a rank instead of 1 (layers/token_order.h)
  int64_t head_buckets = 1;     // tsp: kv heads of a visit are gathered in as many goes
  bool syncs_gradients = true;  // weights that a sequence axis holds more than once: their gradients are summed over it

  /// "tp", or "tp4+sp2" for both axes.
  std::string label() const;
  /// Ranks of the sequence axis (1 under tp and megatron-sp) and of the tensor axis (1 under the others but tp+sp).
  int sequence_size() const;
  int tensor_size() const;
  bool is_linear() const;
};

/// Throws ConfigError that says what does not divide what, or which layer the method has no schedule for.
void check(const Layout& layout);

/// The tensor sizes of tp+sp for a number of ranks: divisors other than 1 and all.
std::vector<int> factorisations(int ranks);

}  // namespace ingot::schedule
