// One bit that is flipped on one rank is found in every layout, by all ranks alike, with the weight's name and the rank; copies that are
// the same pass, which layouts_test.cpp asks for of every layout. Ranks are threads, with emulated devices too.
#include "train/replica_check.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "comm/world.h"
#include "device/test_device.h"
#include "train/parallel_model.h"

namespace ingot::train {
namespace {

using layers::Parameter;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using P = mesh::ParallelConfig;

constexpr int64_t kRows = 4, kSeq = 12;

struct Job {
  P parallel;
  int ranks = 2;
  std::string family = "llama", precision = "fp32";
  bool emulated = false, offloads = false;
};

models::ModelConfig model_of(const std::string& family) {
  models::ModelConfig c;
  c.family = family;
  c.layers = 3, c.hidden = 32, c.vocab_size = 48, c.heads = 4, c.kv_heads = 2, c.head_dim = 8, c.ffn = 48;
  c.experts = 4, c.expert_ffn = 16, c.router_hidden = 8, c.rope_fraction = 0.5;
  c.tie_embeddings = true;
  return c;
}

data::Batch batch_of(int64_t step, int64_t first_row, int64_t rows) {
  data::Batch b{.batch = rows, .seq = kSeq};
  for (int64_t i = 0; i < rows * kSeq; ++i) {
    const int64_t n = (step * kRows + first_row) * kSeq + i;
    b.inputs.push_back(static_cast<int32_t>(n * n * 7 % 47));
    b.targets.push_back(static_cast<int32_t>((n * 11 + 3) % 47));
    b.document_starts.push_back(0);
  }
  return b;
}

// Of the element in the middle the bit that counts least.
void flip_a_bit(const at::Tensor& tensor) {
  const auto host = tensor.detach().cpu().clone();
  auto* const byte = static_cast<uint8_t*>(host.data_ptr()) + host.numel() / 2 * static_cast<int64_t>(host.element_size());
  *byte ^= 1;
  tensor.detach().copy_(host);
}

/// What a rank does between the calls of a step.
struct Fault {
  int rank = 0;
  int64_t step = 2;  // from 0
  bool before_step = true;
  std::function<std::string(ParallelModel&)> make;  // and says of which weight
};

struct Outcome {
  std::vector<std::string> messages;  // of ReplicaError, by rank
  std::vector<double> losses;         // of rank 0
  std::string weight;
};

Outcome train(const Job& job, const Fault* fault = nullptr, int64_t steps = 4, bool checks = true) {
  Outcome outcome{.messages = std::vector<std::string>(static_cast<size_t>(job.ranks)), .losses = {}, .weight = {}};
  comm::run_ranks(job.ranks, [&](comm::World& world) {
    mesh::Groups groups(world, job.parallel);
    TrainingSetup setup{.model = model_of(job.family), .parallel = job.parallel, .precision = job.precision};
    setup.device = job.emulated ? device::emulated_device(world.rank()) : device::test_device(world.rank());
    setup.optimizer.name = "adamw";
    setup.optimizer.offload = job.offloads;
    setup.parallel.bucket_mib = 0.01;
    setup.microbatch = 1;
    ParallelModel model(setup, groups);
    const int64_t share = kRows / groups.mesh().size(mesh::Axis::data), first_row = share * groups.mesh().position(mesh::Axis::data);
    auto* const check = checks ? model.replica_check() : nullptr;
    for (int64_t step = 0; step < steps; ++step) {
      const bool strikes = fault && fault->rank == world.rank() && fault->step == step;
      if (strikes && fault->before_step) outcome.weight = fault->make(model);
      const auto result = model.step().run(batch_of(step, first_row, share), 1e-2, check);
      if (world.rank() == 0) outcome.losses.push_back(result.loss);
      if (strikes && !fault->before_step) {
        if (model.buckets()) model.buckets()->complete_values();
        outcome.weight = fault->make(model);
      }
      try {
        if (check) check->compare(step + 1);
      } catch (const base::ReplicaError& error) {
        outcome.messages[static_cast<size_t>(world.rank())] = error.what();
        return;
      }
    }
  });
  return outcome;
}

using Choice = std::function<bool(const Parameter&)>;

std::function<std::string(ParallelModel&)> flip_in_the_last(const Choice& is_wanted) {
  return [is_wanted](ParallelModel& model) {
    const Parameter* last = nullptr;
    for (const auto& p : model.model().parameters().all())
      if (is_wanted(*p)) last = p.get();
    if (!last) throw std::runtime_error("no such weight");
    flip_a_bit(last->value);
    return last->name;
  };
}

void expect_found(const Job& job, const Fault& fault, const std::string& when, const std::string& against) {
  SCOPED_TRACE(fmt::format("{} {} of {} ranks, zero {}", job.family, job.precision, job.ranks, job.parallel.zero));
  const auto outcome = train(job, &fault);
  ASSERT_FALSE(outcome.weight.empty());
  EXPECT_EQ(outcome.losses.size(), static_cast<size_t>(fault.step + 1)) << "training went on";
  for (const auto& message : outcome.messages) {
    EXPECT_THAT(message, AllOf(HasSubstr(fmt::format("step {}: ", fault.step + 1)), HasSubstr("first in " + outcome.weight + " (" + when),
                               HasSubstr(against), HasSubstr("Copies agreed after step 2: the run may go on from a checkpoint"),
                               HasSubstr("ingot bench all --check")));
    EXPECT_EQ(message, outcome.messages[0]);
  }
}

const Choice kWhole = [](const Parameter& p) { return p.part.empty() && !p.is_expert && p.is_trained(); };
const Choice kCut = [](const Parameter& p) { return !p.part.empty() && !p.is_expert && p.kind == Parameter::Kind::matrix; };
const Choice kExpert = [](const Parameter& p) { return p.is_expert; };
const Choice kMatrix = [](const Parameter& p) { return p.kind == Parameter::Kind::matrix; };
const Choice kVector = [](const Parameter& p) { return p.kind == Parameter::Kind::vector; };
const Choice kBuffer = [](const Parameter& p) { return p.kind == Parameter::Kind::buffer; };
const Choice kEmbedding = [](const Parameter& p) { return p.kind == Parameter::Kind::embedding; };

constexpr const char *kUsed = "as the step's passes used it", *kUpdated = "after the step's update";

TEST(ReplicaCheck, of_data_parallel_ranks_finds_a_flipped_bit) {
  for (const char* precision : {"fp32", "bf16"})
    for (const int64_t zero : {0, 1, 2}) {
      Job job{.parallel = P{.zero = zero}, .ranks = 4, .precision = precision, .emulated = zero == 1};
      expect_found(job, {.rank = 2, .make = flip_in_the_last(kMatrix)}, kUsed, "on ranks 0, 1 and 3, ");
      expect_found(job, {.rank = 2, .make = flip_in_the_last(kVector)}, kUsed, "Most agree; against them stands rank 2 on ");
      job.ranks = 2;
      expect_found(job, {.rank = 1, .make = flip_in_the_last(kMatrix)}, kUsed, "No side has a majority: judge the nodes of rank 0 on ");
      expect_found(job, {.rank = 1, .make = flip_in_the_last(kEmbedding)}, kUsed, "on rank 1. No side");
    }
}

TEST(ReplicaCheck, finds_what_a_gather_brought_wrong) {
  for (const int64_t zero : {0, 1, 2})
    expect_found({.parallel = P{.zero = zero}, .ranks = 4}, {.rank = 3, .before_step = false, .make = flip_in_the_last(kMatrix)}, kUpdated,
                 "against them stands rank 3 on ");
}

// With ZeRO 3 vectors are the weights that every rank holds.
TEST(ReplicaCheck, leaves_out_what_zero_3_gathers_for_each_use) {
  expect_found({.parallel = P{.zero = 3}, .ranks = 4}, {.rank = 1, .make = flip_in_the_last(kVector)}, kUsed, "stands rank 1 on ");
  const auto outcome = train({.parallel = P{.zero = 3}, .ranks = 4});
  EXPECT_EQ(outcome.losses.size(), 4);
}

TEST(ReplicaCheck, of_masters_finds_a_bit_that_the_rounded_weight_may_hide) {
  const auto flip_master = [](ParallelModel& model) {
    const auto masters = model.optimizer().masters();
    const auto& [parameter, master] = masters.at(masters.size() / 2);
    flip_a_bit(master);
    return parameter->name;
  };
  for (const bool offloads : {false, true})
    expect_found({.parallel = P{.zero = 0}, .ranks = 4, .precision = "bf16", .emulated = offloads, .offloads = offloads},
                 {.rank = 1, .before_step = false, .make = flip_master}, "the fp32 master", "stands rank 1 on ");
}

TEST(ReplicaCheck, of_shards_compares_each_with_its_own_copies) {
  for (const bool emulated : {false, true}) {
    const Job tensor{.parallel = P{.tensor = 2}, .ranks = 4, .emulated = emulated};
    // Rank 3 shares its shards with rank 1, and with all others what is not cut.
    expect_found(tensor, {.rank = 3, .make = flip_in_the_last(kCut)}, kUsed, "judge the nodes of rank 1 on ");
    expect_found(tensor, {.rank = 3, .make = flip_in_the_last(kWhole)}, kUsed, "on ranks 0, 1 and 2, ");
    const Job experts{.parallel = P{.expert = 2}, .ranks = 4, .family = "zaya1", .emulated = emulated};
    expect_found(experts, {.rank = 2, .make = flip_in_the_last(kExpert)}, kUsed, "judge the nodes of rank 0 on ");
    expect_found(experts, {.rank = 2, .make = flip_in_the_last(kWhole)}, kUsed, "stands rank 2 on ");
    expect_found(experts, {.rank = 1, .make = flip_in_the_last(kBuffer)}, kUsed, "stands rank 1 on ");
    const Job stages{.parallel = P{.pipeline = 2}, .ranks = 4, .emulated = emulated};
    expect_found(stages, {.rank = 3, .make = flip_in_the_last(kMatrix)}, kUsed, "judge the nodes of rank 2 on ");
  }
  // The norms of tensor-parallel ranks alone, which no sum over tokens brings together.
  expect_found({.parallel = P{.tensor = 2, .sequence_parallel = false}, .ranks = 2}, {.rank = 1, .make = flip_in_the_last(kWhole)}, kUsed,
               "judge the nodes of rank 0 on ");
  expect_found({.parallel = P{.context = 2}, .ranks = 2}, {.rank = 0, .make = flip_in_the_last(kMatrix)}, kUsed, "on rank 1. ");
}

// The middle stage has none of it.
TEST(ReplicaCheck, of_a_tied_embedding_compares_both_ends_of_a_pipeline) {
  EXPECT_EQ(train({.parallel = P{.pipeline = 3}, .ranks = 3}).losses.size(), 4);
  expect_found({.parallel = P{.pipeline = 3}, .ranks = 3}, {.rank = 2, .make = flip_in_the_last(kEmbedding)}, kUsed,
               "judge the nodes of rank 0 on ");
  expect_found({.parallel = P{.pipeline = 2, .tensor = 2}, .ranks = 4}, {.rank = 2, .make = flip_in_the_last(kEmbedding)}, kUsed,
               "judge the nodes of rank 0 on ");
}

TEST(ReplicaCheck, names_the_first_of_several_weights) {
  const auto flip_all = [](ParallelModel& model) {
    for (const auto& p : model.model().parameters().all())
      if (p->layer >= 1) flip_a_bit(p->value);
    for (const auto& p : model.model().parameters().all())
      if (p->layer >= 1) return p->name;
    return std::string();
  };
  expect_found({.parallel = P{.zero = 1}, .ranks = 3}, {.rank = 0, .make = flip_all}, kUsed, "stands rank 0 on ");
}

TEST(ReplicaCheck, of_a_skipped_step_says_whose_weight_made_it_so) {
  const Fault fault{.rank = 1, .make = [](ParallelModel& model) {
                      const auto& p = *model.model().parameters().all().back();
                      p.value.detach().fill_(std::nan(""));
                      return p.name;
                    }};
  const auto outcome = train({.parallel = P{.zero = 0}, .ranks = 3}, &fault);
  for (const auto& message : outcome.messages)
    EXPECT_THAT(message, AllOf(HasSubstr("first in " + outcome.weight + " (" + kUsed), HasSubstr("stands rank 1 on ")));
}

TEST(ReplicaCheck, says_when_nothing_was_compared_before) {
  const Fault fault{.rank = 1, .step = 0, .make = flip_in_the_last(kMatrix)};
  const auto outcome = train({.parallel = P{}, .ranks = 2}, &fault);
  EXPECT_THAT(outcome.messages[0], AllOf(HasSubstr("This start has not compared them before"), Not(HasSubstr("Copies agreed"))));
}

TEST(ReplicaCheck, changes_no_loss) {
  for (const int64_t zero : {0, 1, 3})
    for (const char* family : {"llama", "zaya1"}) {
      const Job job{.parallel = P{.zero = zero}, .ranks = 2, .family = family};
      EXPECT_EQ(train(job).losses, train(job, nullptr, 4, false).losses);
    }
}

TEST(ReplicaCheck, of_one_rank_has_nothing_to_compare) {
  const auto outcome = train({.parallel = P{.zero = 0}, .ranks = 1});
  EXPECT_EQ(outcome.losses.size(), 4);
}

}  // namespace
}  // namespace ingot::train
