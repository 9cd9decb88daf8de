// Matrices owned in pieces by several ranks, brought together and taken home: every rank's slice must end as the same slice of
// what one rank alone would have computed.
#include "parallel/matrix_exchange.h"

#include <gtest/gtest.h>

#include <numeric>

#include "comm/world.h"

namespace ingot::parallel {
namespace {

using layers::Parameter;
using layers::ParameterList;

// Not element by element, so that a wrong piece anywhere shows everywhere.
at::Tensor worked_on(const at::Tensor& x) { return at::mm(at::mm(x, x.t()), x); }

at::Tensor content_of(const tensor::Shape& shape, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kDouble);
}

const std::vector<tensor::Shape> kShapes = {{6, 10}, {5, 7, 4}, {9, 3}, {1, 8}, {2, 30, 2}};

// What one rank holds of each shape, and the slice of it that it owns.
struct Ownership {
  tensor::Part part;
  int64_t begin, end;
};
using OwnershipOf = std::function<std::vector<Ownership>(int rank, int ranks)>;

double elements(int64_t rows, int64_t cols) { return static_cast<double>(rows * cols); }

// Bytes that rank 0 sends. `loads`: of each rank, the cost of what it works on.
int64_t run(const OwnershipOf& ownership_of, int ranks, bool spread, const MatrixExchange::CostOf& cost_of = elements,
            std::vector<double>* loads = nullptr, std::optional<at::ScalarType> result_dtype = std::nullopt) {
  int64_t sent = 0;
  if (loads) loads->assign(static_cast<size_t>(ranks), 0);
  comm::run_ranks(ranks, [&](comm::World& world) {
    ParameterList list;
    const auto own = ownership_of(world.rank(), ranks);
    for (size_t i = 0; i < kShapes.size(); ++i)
      list.add({.name = "m" + std::to_string(i), .shape = kShapes[i], .part = own[i].part, .kind = Parameter::Kind::matrix});
    list.allocate(at::kDouble, at::kCPU);
    std::vector<Shard> shards;
    std::vector<const Shard*> pointers;
    std::vector<at::Tensor> slices, expected;
    for (size_t i = 0; i < own.size(); ++i) {
      if (own[i].begin >= own[i].end) continue;
      auto& p = *list.all()[i];
      shards.push_back({&p, own[i].begin, own[i].end, p.value.detach().view(-1).narrow(0, own[i].begin, own[i].end - own[i].begin)});
      const auto whole = content_of(kShapes[i], i);
      auto after = whole.clone();
      auto stack = after.dim() == 3 ? after : after.unsqueeze(0);
      for (int64_t m = 0; m < stack.size(0); ++m) stack[m].copy_(worked_on(stack[m]));
      for (const auto& [from, to] : {std::pair{whole, &slices}, std::pair{after, &expected}}) {
        auto flat = at::empty({shards.back().size()}, at::kDouble);
        for (const auto& region : shards.back().regions()) {
          auto box = from;
          for (size_t d = 0; d < kShapes[i].size(); ++d)
            box = box.narrow(static_cast<int64_t>(d), region.box.offset[d], region.box.extent[d]);
          view_of(region, flat).copy_(box);
        }
        to->push_back(flat);
      }
    }
    for (const auto& shard : shards) pointers.push_back(&shard);
    // What the caller rounds anyway.
    const auto rounded = [&](const at::Tensor& x) { return result_dtype ? x.to(*result_dtype).to(at::kDouble) : x; };
    for (auto& slice : expected) slice = rounded(slice);
    MatrixExchange exchange(list, pointers, world.everyone(), spread, cost_of, result_dtype);
    const auto count = [&](const at::Tensor& matrix) {
      if (loads) (*loads)[static_cast<size_t>(world.rank())] += cost_of(matrix.size(0), matrix.size(1));
    };
    const int64_t before = world.counters().totals()["world"].sent_bytes;
    exchange.start(slices);
    for (const auto& matrix : exchange.whole()) {
      count(matrix);
      matrix.copy_(rounded(worked_on(matrix)));
    }
    auto matrices = exchange.gathered();
    for (auto& matrix : matrices) {
      count(matrix);
      matrix = rounded(worked_on(matrix));
    }
    exchange.finish(matrices);
    for (size_t i = 0; i < slices.size(); ++i)
      EXPECT_TRUE(at::allclose(slices[i], expected[i], 1e-12, 1e-12))
          << "rank " << world.rank() << " of " << ranks << ", " << shards[i].parameter->name;
    if (world.rank() == 0) sent = world.counters().totals()["world"].sent_bytes - before;
  });
  return sent;
}

// ZeRO: all tensors end to end, cut into equal slices wherever that falls.
std::vector<Ownership> flat_slices(int rank, int ranks) {
  int64_t total = 0;
  for (const auto& shape : kShapes) total += tensor::element_count(shape);
  const int64_t from = total * rank / ranks, to = total * (rank + 1) / ranks;
  std::vector<Ownership> own;
  int64_t at = 0;
  for (const auto& shape : kShapes) {
    const int64_t count = tensor::element_count(shape);
    own.push_back({{}, std::clamp<int64_t>(from - at, 0, count), std::clamp<int64_t>(to - at, 0, count)});
    at += count;
  }
  return own;
}

// Tensor parallelism by two (columns, or rows in two ranges) under ZeRO over the rest.
std::vector<Ownership> parts_and_slices(int rank, int ranks) {
  const int tensor = rank % 2, data = rank / 2, datas = ranks / 2;
  std::vector<Ownership> own;
  for (size_t i = 0; i < kShapes.size(); ++i) {
    auto part = tensor::whole_part(kShapes[i]);
    const size_t last = kShapes[i].size() - 1;
    if (kShapes[i][last] % 2 == 0) {
      part[last] = {tensor::share_of(kShapes[i][last], tensor, 2)};
    } else {  // two ranges of rows each
      const int64_t n = kShapes[i][last - 1];
      part[last - 1] =
          tensor == 0 ? std::vector<tensor::Range>{{0, n / 4}, {n / 2, n - 1}} : std::vector<tensor::Range>{{n / 4, n / 2}, {n - 1, n}};
    }
    const int64_t count = tensor::element_count(tensor::local_shape(kShapes[i], part));
    own.push_back({part, count * data / datas, count * (data + 1) / datas});
  }
  return own;
}

TEST(MatrixExchange, slices_of_zero_come_home_from_any_number_of_owners) {
  for (const int ranks : {1, 2, 3, 4, 7})  // with 7, one matrix has three owners
    for (const bool spread : {false, true}) run(flat_slices, ranks, spread);
}

TEST(MatrixExchange, tensor_parallel_pieces_do_too) {
  for (const int ranks : {2, 4, 6})
    for (const bool spread : {false, true}) run(parts_and_slices, ranks, spread);
}

// No rank has more than its fair share and one matrix, by whatever cost the caller states.
TEST(MatrixExchange, work_is_dealt_out_by_its_cost) {
  const auto alike = [](int64_t, int64_t) { return 1.0; };
  const auto long_ones = [](int64_t rows, int64_t cols) { return static_cast<double>(std::max(rows, cols)); };
  for (const MatrixExchange::CostOf& cost_of : {MatrixExchange::CostOf(alike), MatrixExchange::CostOf(long_ones)})
    for (const int ranks : {2, 3, 4}) {
      std::vector<double> loads;
      run(flat_slices, ranks, true, cost_of, &loads);
      double largest = 0;
      for (const auto& shape : kShapes) largest = std::max(largest, cost_of(shape[shape.size() - 2], shape.back()));
      EXPECT_LE(*std::max_element(loads.begin(), loads.end()), std::accumulate(loads.begin(), loads.end(), 0.0) / ranks + largest) << ranks;
      if (largest == 1) {
        EXPECT_LE(*std::max_element(loads.begin(), loads.end()) - *std::min_element(loads.begin(), loads.end()), 1) << ranks;
      }
    }
}

// Two ranks: the one border lies inside one matrix, whose two parts change places.
TEST(MatrixExchange, only_split_matrices_travel) {
  const auto own = flat_slices(0, 2);
  int64_t piece = 0;  // what rank 0 owns of the matrix that the border cuts
  for (size_t i = 0; i < own.size(); ++i) {
    const int64_t matrix = kShapes[i][kShapes[i].size() - 2] * kShapes[i].back();
    if (own[i].end > 0 && own[i].end % matrix != 0) piece = own[i].end % matrix;
  }
  ASSERT_GT(piece, 0);
  EXPECT_EQ(run(flat_slices, 2, false), piece * 8);
}

// Regression: directions went home in fp32 although Newton-Schulz had rounded them to bf16.
TEST(MatrixExchange, results_travel_in_the_dtype_that_holds_them) {
  const auto sent_with = [](int ranks, std::optional<at::ScalarType> dtype) {
    return run(flat_slices, ranks, true, elements, nullptr, dtype);
  };
  int64_t saved = 0;
  for (const int ranks : {2, 3, 4}) {
    // There in fp64, and back as it says.
    const int64_t in_fp64 = sent_with(ranks, std::nullopt), in_fp32 = sent_with(ranks, at::kFloat),
                  in_bf16 = sent_with(ranks, at::kBFloat16);
    EXPECT_EQ(in_fp64 - in_bf16, (in_fp64 - in_fp32) / 4 * 6) << ranks;
    saved += in_fp64 - in_bf16;
  }
  EXPECT_GT(saved, 0);
}

}  // namespace
}  // namespace ingot::parallel
