// Linear attention: what a rank's tokens leave behind is a state of fixed size per head, and a rank needs the sum of those before it
// (backward: after it). lasp1 hands it on in a chain, lasp2 gathers all states while the rank works within its own tokens, zeco hands it on
// block by block. Ranks hold contiguous tokens.
#include "schedule/sequence_core.h"

namespace ingot::schedule {
namespace {

constexpr int64_t kTile = 64;  // tokens that see each other pair by pair; further back it goes by states

class StateCore : public SequenceCore {
 public:
  explicit StateCore(Script& script) : script_(script), s_(script), group_(script.sequence_group()), place_(script.sequence_rank()) {}

  Buffer forward(Mixed in, const Meanwhile& meanwhile) override {
    in_ = in;
    out_ = script_.buffer(s_.out_bytes);
    if (group_.size == 1) {
      meanwhile();
      script_.list().add("within", Stream::compute, within(1), {in.q, in.kv}, {out_});
      return out_;
    }
    const auto own = script_.compute("own state", products(1, s_.kv_bytes), {in.kv}, state_bytes());
    before_ = exchange(
        own, /*backward=*/false, meanwhile,
        [&] {
          script_.list().add("within", Stream::compute, within(1), {in_.q, in_.kv}, {out_});
        },
        [&](const State& state) {
          script_.compute_into("from before", products(1, s_.q_bytes + 2 * s_.out_bytes), joined({in_.q, out_}, state), out_);
        });
    return out_;
  }

  Mixed backward(Buffer grad_out, const Meanwhile& meanwhile) override {
    const Mixed grads{script_.buffer(s_.q_bytes), script_.buffer(s_.kv_bytes)};
    const auto work_within = [&] {
      script_.list().add("within, back", Stream::compute, within(3), {grad_out, in_.q, in_.kv}, {grads.q, grads.kv});
      if (!before_.empty())
        script_.compute_into("to q, from before", products(1, s_.out_bytes + 2 * s_.q_bytes), joined({grad_out, grads.q}, before_),
                             grads.q);
    };
    if (group_.size == 1) {
      meanwhile();
      work_within();
      return grads;
    }
    const auto own = script_.compute("own state's gradient", products(1, s_.q_bytes + s_.out_bytes), {in_.q, grad_out}, state_bytes());
    exchange(own, /*backward=*/true, meanwhile, work_within, [&](const State& state) {
      script_.compute_into("to k v, from after", products(2, 3 * s_.kv_bytes), joined({in_.kv, grads.kv}, state), grads.kv);
    });
    return grads;
  }

 private:
  using State = Script::Buffers;  // one, or its blocks
  using Within = std::function<void()>;
  using FromOthers = std::function<void(const State& state)>;

  static Script::Buffers joined(Script::Buffers some, const State& more) {
    some.insert(some.end(), more.begin(), more.end());
    return some;
  }
  int64_t state_bytes() const { return s_.batch * s_.heads * s_.key_dim * s_.value_dim * script_.wide(); }
  // Every token with a state, `times`.
  StateWork products(double times, int64_t bytes) const {
    return {times * 2 * static_cast<double>(s_.rows() * s_.heads * s_.key_dim * s_.value_dim), bytes + state_bytes()};
  }
  // Tiles, and states from tile to tile.
  StateWork within(double times) const {
    const auto tokens = static_cast<double>(s_.rows() * s_.heads);
    const double tiles = 2 * kTile * static_cast<double>(s_.key_dim + s_.value_dim),
                 states = 4 * static_cast<double>(s_.key_dim * s_.value_dim);
    const int64_t bytes = s_.q_bytes + s_.kv_bytes + s_.out_bytes;
    return {times * tokens * (tiles + states), static_cast<int64_t>(times * static_cast<double>(bytes))};
  }
  bool is_first(bool backward) const { return place_ == (backward ? group_.size - 1 : 0); }
  bool is_last(bool backward) const { return place_ == (backward ? 0 : group_.size - 1); }
  int before(bool backward) const { return group_.rank(place_ + (backward ? 1 : -1)); }
  int after(bool backward) const { return group_.rank(place_ + (backward ? -1 : 1)); }

  // Returns the state that came from the others: nothing on the first rank of a chain.
  State exchange(Buffer own, bool backward, const Meanwhile& meanwhile, const Within& work_within, const FromOthers& from_others) {
    switch (script_.layout().method) {
      case Method::lasp1: return chain(own, backward, meanwhile, work_within, from_others);
      case Method::zeco: return scan(own, backward, meanwhile, work_within, from_others);
      default: return gather(own, meanwhile, work_within, from_others);
    }
  }

  State gather(Buffer own, const Meanwhile& meanwhile, const Within& work_within, const FromOthers& from_others) {
    const int64_t each = state_bytes() + s_.batch * s_.heads * script_.layout().transition_elements * script_.wide();
    const auto all = script_.buffer(each * group_.size);
    script_.collective("gather states", Kind::all_gather, group_, each * group_.size, {own}, {all}, -1, script_.wide());
    meanwhile();
    work_within();
    const auto state = script_.compute("add up states", Move{each * group_.size + state_bytes()}, {all}, state_bytes());
    from_others({state});
    return {state};
  }

  // Receives, uses, adds its own, sends.
  State chain(Buffer own, bool backward, const Meanwhile& meanwhile, const Within& work_within, const FromOthers& from_others) {
    work_within();
    State state;
    auto leaving = own;
    if (!is_first(backward)) {
      state = {script_.receive("state from before", before(backward), state_bytes())};
      meanwhile();
      from_others(state);
      leaving = script_.compute("add own state", Move{3 * state_bytes()}, {state[0], own}, state_bytes());
    } else {
      meanwhile();
    }
    if (!is_last(backward)) script_.send("state on", after(backward), state_bytes(), leaving);
    return state;
  }

  // All blocks of all ranks are work of kernels that wait for them, but for the first block of the chain.
  bool is_under_way(int64_t block, int sender, bool backward) const {
    return block > 0 || sender != group_.rank(backward ? group_.size - 1 : 0);
  }

  // Each block of the state is added to and sent on as soon as it is here, beside what the rank computes.
  State scan(Buffer own, bool backward, const Meanwhile& meanwhile, const Within& work_within, const FromOthers& from_others) {
    const int64_t blocks = script_.layout().scan_blocks, bytes = state_bytes() / blocks;
    auto& list = script_.list();
    State arrived;
    for (int64_t block = 0; block < blocks; ++block) {
      auto leaving = own;
      if (!is_first(backward)) {
        arrived.push_back(script_.receive("block from before", before(backward), bytes, is_under_way(block, before(backward), backward)));
        leaving = script_.buffer(bytes);
        list.add("add own block", Stream::side, Move{3 * bytes}, {arrived.back(), own}, {leaving});
      }
      if (!is_last(backward)) script_.send("block on", after(backward), bytes, leaving, is_under_way(block, script_.rank(), backward));
    }
    meanwhile();
    work_within();
    if (!arrived.empty()) from_others(arrived);
    return arrived;
  }

  Script& script_;
  CoreSizes s_;
  Group group_;
  int place_;
  Mixed in_;
  Buffer out_ = -1;
  State before_;
};

}  // namespace

std::unique_ptr<SequenceCore> state_core(Script& script) { return std::make_unique<StateCore>(script); }

}  // namespace ingot::schedule
