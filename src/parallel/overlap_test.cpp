// Schedules over a slow wire, at night: what can travel under the computation does. Four ranks are processes whose collectives and messages
// are held back as a link of a given bandwidth would; nothing else differs between the runs that are compared. By day the same is tested by
// order, without a clock (overlap_order_test.cpp).
//
// Other work on the machine makes every time longer and none shorter, so the best of several runs counts, taken by turns.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>

#include "base/test_night.h"
#include "comm/test_ranks.h"
#include "kernels/activation.h"
#include "kernels/linear_attention.h"
#include "layers/linear.h"
#include "layers/softmax_attention.h"
#include "parallel/context/linear_attention.h"
#include "parallel/rotation.h"
#include "parallel/tensor_sequence/folded_layer.h"
#include "parallel/tensor_sequence/schedule.h"

namespace ingot::parallel {
namespace {

using namespace layers;

constexpr int kRanks = 4, kRepeats = 5, kAttempts = 12;

using Clock = std::chrono::steady_clock;
using Job = std::function<void()>;
using JobOf = std::function<Job(comm::World&)>;  // what a rank does

// Memory that the ranks' processes share with the test.
class Shared {
 public:
  Shared() : at_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (at_ == MAP_FAILED) throw std::runtime_error("no memory to share");
  }
  ~Shared() { munmap(at_, kBytes); }
  Shared(const Shared&) = delete;
  double& seconds() { return *static_cast<double*>(at_); }

 private:
  static constexpr size_t kBytes = 4096;
  void* at_;
};

// Seconds of the slowest rank, best of some repeats. `job_of` makes a rank's work, without gradients.
double best_of(double bytes_per_s, const std::function<Job(comm::World&)>& job_of) {
  Shared shared;
  comm::WorldOptions options;
  options.delay.bytes_per_s = bytes_per_s;
  comm::run_on(
      comm::Fabrics::shared_memory, kRanks,
      [&](comm::World& world) {
        const at::NoGradGuard no_grad;
        const auto job = job_of(world);
        job();
        double best = 1e9;
        for (int i = 0; i < kRepeats; ++i) {
          world.everyone().barrier();
          const auto start = Clock::now();
          job();
          auto seconds = at::full({1}, std::chrono::duration<double>(Clock::now() - start).count(), at::kDouble);
          world.everyone().all_reduce(seconds, comm::Reduction::max);
          best = std::min(best, seconds.item<double>());
        }
        if (world.rank() == 0) shared.seconds() = best;
      },
      options);
  return shared.seconds();
}

// What a run takes: without a wire, and the part of that which can hide messages; one message, with nothing else going on.
struct Times {
  double plain = 0, compute = 0, wire = 0;
  double hidden = 0, by_turns = 0;  // with the wire: as the schedule should, and if nothing were hidden
};

// Runs `job_of` with a wire that takes `share` of what compute_s() says for the `bytes` of `message_of`, and without one: it takes what the
// schedule says within `tolerance`.
void expect_time(const char* what, double share, double bytes, const JobOf& message_of, const JobOf& job_of,
                 const std::function<double(double plain)>& compute_s, const std::function<void(Times&)>& expect, double tolerance = 1.1) {
  Times t{.plain = best_of(0, job_of)};
  t.compute = compute_s(t.plain);
  const double bytes_per_s = bytes / (share * t.compute);
  t.wire = best_of(bytes_per_s, message_of);
  double slow = 1e9, limit = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    slow = std::min(slow, best_of(bytes_per_s, job_of));
    expect(t);
    limit = tolerance * t.hidden;
    if (slow <= limit) break;
    t.plain = std::min(t.plain, best_of(0, job_of));
    t.compute = std::min(t.compute, compute_s(t.plain));
    t.wire = std::min(t.wire, best_of(bytes_per_s, message_of));
  }
  std::printf("%-16s without a wire %5.1f ms, a message %5.1f ms: %5.1f ms by turns, %5.1f expected, %5.1f measured\n", what, 1e3 * t.plain,
              1e3 * t.wire, 1e3 * t.by_turns, 1e3 * t.hidden, 1e3 * slow);
  EXPECT_LE(slow, limit) << what << ": " << t.plain << " s without a wire, of which " << t.compute << " can hide messages; a message takes "
                         << t.wire << " s; by turns " << t.by_turns;
  EXPECT_GE(slow, bytes / bytes_per_s) << "the wire is not there";
}

class Overlap : public testing::Test {
 protected:
  void SetUp() override {
    if (!base::tests_run_at_night()) GTEST_SKIP() << "measured with ./scripts/test --night";
  }
};

// LASP-2's forward takes max(gather, intra) + inter (arXiv 2502.07563, algorithm 2): everything but the intra-chunk part is `plain -
// intra`.
TEST_F(Overlap, lasp2_gathers_states_under_the_intra_chunk_part) {
  const int64_t tokens = 4096, heads = 4, dim = 64;
  const auto inputs = [=] {
    const auto x = at::ones({1, tokens, heads, dim}) * 0.1;
    return kernels::LinearAttentionInputs{x, x.clone(), x.clone(), at::full({heads}, -0.01), {}, {}};
  };
  const auto whole = [&](comm::World& world) -> Job {
    const ContextAxis axis{{.rank = world.rank(), .size = kRanks, .zigzag = false}, &world.everyone()};
    const auto sequences = std::make_shared<Sequences>(1, tokens, at::Tensor(), 0, at::kCPU, axis.schedule());
    return [in = inputs(), sequences, axis] { sharded_linear_attention(in, *sequences, axis); };
  };
  const auto intra = [&](comm::World&) -> Job { return [in = inputs()] { kernels::linear_attention_forward(in); }; };
  const double gathered = (kRanks - 1) * heads * dim * dim * 4;
  const auto gather = [&](comm::World& world) -> Job {
    const auto own = at::ones({heads * dim * dim}), all = at::ones({kRanks, heads * dim * dim});
    return [&world, own, all] { world.everyone().all_gather(all, own); };
  };
  for (const double share : {1.0, 2.0})
    expect_time(
        "lasp2", share, gathered, gather, whole, [&](double) { return best_of(0, intra); },
        [](Times& t) {
          t.hidden = std::max(t.wire, t.compute) + t.plain - t.compute;
          t.by_turns = t.wire + t.plain;
        });
}

struct Mlp {
  Parameter gate, up, down;
  at::Tensor x;
  Mlp(int64_t tokens, int64_t hidden, int64_t part) : x(at::ones({1, tokens, hidden})) {
    gate.value = at::ones({part, hidden}), up.value = at::ones({part, hidden}), down.value = at::ones({hidden, part});
  }
};

// A hop is hidden where it takes no longer than the GEMMs with a part of the weights, and else shows what it takes longer
// (a ring of p - 1 hops and p GEMMs, TSP, arXiv 2604.26294): (p - 1) max(hop, part) + part.
TEST_F(Overlap, tsp_hops_of_an_mlp_travel_under_the_gemms) {
  const int64_t tokens = 1024, hidden = 256, part = 320;
  const auto whole = [&](comm::World& world) -> Job {
    const TensorSequenceAxis axis{.rank = world.rank(), .size = kRanks, .group = &world.everyone()};
    return [axis, mlp = std::make_shared<Mlp>(tokens, hidden, part)] {
      folded_layer(mlp->x,
                   {{&mlp->gate, &mlp->up},
                    &mlp->down,
                    [](const at::Tensor& in, const ShardOfWeights& w) {
                      return kernels::glu(linear(in, {w[0], w[1]}));
                    }},
                   axis);
    };
  };
  const double hop = 3.0 * part * hidden * 4;
  const auto rotation = [&](comm::World& world) -> Job {
    const auto own = at::ones({3 * part * hidden}), next = at::ones({3 * part * hidden});
    return [&world, own, next] { Rotation(world.everyone(), own, next).wait(); };
  };
  for (const double share : {0.75, 2.0})
    expect_time(
        "tsp, gated MLP", share, hop, rotation, whole, [](double plain) { return plain / kRanks; },
        [](Times& t) {
          t.hidden = (kRanks - 1) * std::max(t.wire, t.plain / kRanks) + t.plain / kRanks;
          t.by_turns = (kRanks - 1) * t.wire + t.plain;
        },
        1.15);  // three messages one behind the other, each received by a thread that the computation keeps waiting a little
}

// Weights and keys of the next heads travel while those at hand are attended to; the first of each is waited for.
TEST_F(Overlap, tsp_weights_and_keys_travel_under_attention) {
  const int64_t tokens = 512, hidden = 128, heads = 8, dim = 16;
  struct Layer {
    Parameter q, k, v, o;
    at::Tensor x;
  };
  const auto whole = [&](comm::World& world) -> Job {
    const TensorSequenceAxis axis{.rank = world.rank(), .size = kRanks, .group = &world.everyone()};
    const ContextAxis spread{{.rank = world.rank(), .size = kRanks}, &world.everyone()};
    const auto layer = std::make_shared<Layer>();
    const int64_t width = heads * dim / kRanks;
    for (auto* weight : {&layer->q, &layer->k, &layer->v}) weight->value = at::ones({width, hidden}) * 0.01;
    layer->o.value = at::ones({hidden, width}) * 0.01;
    layer->x = at::ones({1, tokens, hidden});
    const auto sequences = std::make_shared<Sequences>(1, tokens, at::Tensor(), 0, at::kCPU, spread.schedule());
    return [=, rotary = RotarySettings{.rotated = dim}] {
      const SoftmaxAttention attention({heads, heads, dim, 0, rotary, &layer->q, &layer->k, &layer->v, &layer->o});
      TensorSequenceSchedule(axis, spread).run(attention, layer->x, *sequences, {});
    };
  };
  const double gathered = 2.0 * (kRanks - 1) * tokens * heads * dim / kRanks * 4;
  const auto gather = [&](comm::World& world) -> Job {
    const auto own = at::ones({2 * tokens * heads * dim / kRanks}), all = at::ones({kRanks, own.numel()});
    return [&world, own, all] { world.everyone().all_gather(all, own); };
  };
  expect_time(
      "tsp, attention", 0.5, gathered, gather, whole, [](double plain) { return plain / kRanks; },
      [&](Times& t) {
        const double weights = 4.0 * hidden * heads * dim / kRanks * 4 / gathered * t.wire;
        t.hidden = t.plain + weights + t.wire;
        t.by_turns = t.plain + kRanks * (weights + t.wire);
      });
}

}  // namespace
}  // namespace ingot::parallel
