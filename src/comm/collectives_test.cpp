// Every collective over threads, over the shared memory of processes, and over the pairwise algorithms that run on Gloo, against
// values that a single process computes from what each rank put in.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/test_night.h"
#include "comm/test_ranks.h"

namespace ingot::comm {
namespace {

// Small whole numbers, which every dtype holds and adds without rounding; different for each rank and place.
at::Tensor values_of(int rank, int64_t count, at::ScalarType dtype) {
  return at::arange(count, at::kLong).mul(7).add(rank * 3).remainder(5).to(dtype);
}

at::Tensor sum_of(int size, int64_t count, at::ScalarType dtype) {
  auto total = at::zeros({count}, at::kLong);
  for (int r = 0; r < size; ++r) total += values_of(r, count, at::kLong);
  return total.to(dtype);
}

struct Setting {
  Fabrics fabric;
  int size;
};

class Collectives : public ::testing::TestWithParam<Setting> {
 protected:
  void on_all_ranks(const std::function<void(Group&)>& body) {
    run_on(GetParam().fabric, GetParam().size, [&](World& world) { body(world.everyone()); });
  }
  int size() const { return GetParam().size; }
};

// The largest, of several pieces, by day in fp32 only.
std::vector<int64_t> counts(at::ScalarType dtype) {
  if (dtype == at::kFloat || base::tests_run_at_night()) return {0, 1, 7, 1024, 100'003, 700'001};
  return {0, 1, 7, 1024, 20'003};
}
constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kLong, at::kByte};

TEST_P(Collectives, all_reduce_adds_and_takes_extremes) {
  on_all_ranks([&](Group& group) {
    for (const auto dtype : kTypes) {
      for (const int64_t count : counts(dtype)) {
        auto x = values_of(group.rank(), count, dtype);
        group.all_reduce(x);
        require(x.equal(sum_of(size(), count, dtype)), "sum of {} {}", count, at::toString(dtype));
        x = at::full({3}, group.rank() + 1, dtype);
        group.all_reduce(x, Reduction::max);
        require(x.eq(size()).all().item<bool>(), "max of {}", at::toString(dtype));
        x = at::full({3}, group.rank() + 1, dtype);
        group.all_reduce(x, Reduction::min);
        require(x.eq(1).all().item<bool>(), "min of {}", at::toString(dtype));
      }
    }
  });
}

TEST_P(Collectives, reduce_scatter_and_all_gather_are_halves_of_it) {
  on_all_ranks([&](Group& group) {
    for (const auto dtype : kTypes) {
      for (const int64_t total : counts(dtype)) {
        const int64_t count = (total + size() - 1) / size();
        const auto in = values_of(group.rank(), count * size(), dtype), expected = sum_of(size(), count * size(), dtype);
        const auto out = at::full({count}, 99, in.options());
        group.reduce_scatter(out, in);
        require(out.equal(expected.narrow(0, group.rank() * count, count)), "reduce_scatter of {} {}", count, at::toString(dtype));
        const auto whole = at::full({count * size()}, 99, in.options());
        group.all_gather(whole, out);
        require(whole.equal(expected), "all_gather of {} {}", count, at::toString(dtype));
      }
    }
  });
}

TEST_P(Collectives, parts_may_lie_inside_the_whole) {
  on_all_ranks([&](Group& group) {
    const int64_t count = 200'000;
    const auto whole = values_of(group.rank(), count * size(), at::kFloat), part = whole.narrow(0, group.rank() * count, count);
    group.reduce_scatter(part, whole);
    require(part.equal(sum_of(size(), count * size(), at::kFloat).narrow(0, group.rank() * count, count)), "reduce_scatter in place");
    group.all_gather(whole, part);
    require(whole.equal(sum_of(size(), count * size(), at::kFloat)), "all_gather in place");
  });
}

TEST_P(Collectives, broadcast_gives_the_roots_values) {
  on_all_ranks([&](Group& group) {
    for (const int64_t count : counts(at::kFloat)) {
      for (int root = 0; root < size(); ++root) {
        const auto x = values_of(group.rank(), count, at::kFloat);
        group.broadcast(x, root);
        require(x.equal(values_of(root, count, at::kFloat)), "broadcast of {} from {}", count, root);
      }
    }
  });
}

// Large ones pass from rank to rank in parts over Gloo: at the bound, with a shorter last part, and with parts larger than the usual.
TEST_P(Collectives, a_large_broadcast_gives_the_roots_values) {
  struct Case {
    int64_t count, repeats;
    at::ScalarType dtype;
    int root;
  };
  on_all_ranks([&](Group& group) {
    for (const auto& c :
         {Case{1 << 20, 1, at::kFloat, 0}, Case{1'400'003, 1, at::kFloat, size() - 1}, Case{2'097'153, 1, at::kBFloat16, (size() - 1) / 2},
          Case{1'000'003, GetParam().fabric == Fabrics::gloo ? 70 : 7, at::kByte, 0}}) {
      const auto x = values_of(group.rank(), c.count, c.dtype).repeat(c.repeats);
      group.broadcast(x, c.root);
      require(x.equal(values_of(c.root, c.count, c.dtype).repeat(c.repeats)), "broadcast of {} {} from {}", x.numel(),
              at::toString(c.dtype), c.root);
    }
  });
}

TEST_P(Collectives, reduce_gives_the_root_the_sum_and_leaves_the_others) {
  on_all_ranks([&](Group& group) {
    for (const auto dtype : kTypes) {
      for (const int64_t count : counts(dtype)) {
        for (int root = 0; root < size(); ++root) {
          if (count > 10'000 && root != size() / 2 && !base::tests_run_at_night()) continue;
          const auto x = values_of(group.rank(), count, dtype);
          group.reduce(x, root);
          require(x.equal(group.rank() == root ? sum_of(size(), count, dtype) : values_of(group.rank(), count, dtype)),
                  "reduce of {} {} to {}", count, at::toString(dtype), root);
        }
      }
    }
    const auto x = at::full({3}, group.rank() + 1, at::kFloat);
    group.reduce(x, 0, Reduction::max);
    require(group.rank() != 0 || x.eq(size()).all().item<bool>(), "max");
  });
}

// Rank a sends rank b (a + 2b) % 4 rows, times `scale`: some pieces are empty.
int64_t rows_between(int from, int to, int64_t scale) { return (from + 2 * to) % 4 * scale; }

TEST_P(Collectives, all_to_all_takes_uneven_and_empty_pieces) {
  on_all_ranks([&](Group& group) {
    for (const int64_t scale : {int64_t{0}, int64_t{1}, int64_t{50'000}}) {
      std::vector<int64_t> to, from;
      std::vector<at::Tensor> out, expected;
      for (int r = 0; r < size(); ++r) {
        to.push_back(rows_between(group.rank(), r, scale));
        from.push_back(rows_between(r, group.rank(), scale));
        out.push_back(at::full({to.back(), 3}, 10 * group.rank() + r, at::kFloat));
        expected.push_back(at::full({from.back(), 3}, 10 * r + group.rank(), at::kFloat));
      }
      const auto wanted = device::cat(expected);
      const auto got = at::full_like(wanted, -1);
      group.all_to_all(got, from, device::cat(out), to);
      require(got.equal(wanted), "uneven, scale {}", scale);
    }
    const auto in = values_of(group.rank(), size() * 5, at::kLong), got = at::empty_like(in);
    group.all_to_all(got, in);
    for (int r = 0; r < size(); ++r)
      require(got.narrow(0, r * 5, 5).equal(values_of(r, size() * 5, at::kLong).narrow(0, group.rank() * 5, 5)), "even, from {}", r);
  });
}

TEST_P(Collectives, messages_arrive_in_order_and_whole) {
  if (size() == 1) return;
  on_all_ranks([&](Group& group) {
    const int next = (group.rank() + 1) % size(), previous = (group.rank() + size() - 1) % size();
    std::vector<at::Tensor> sent, received;
    std::vector<Work> work;
    for (const int64_t count : {int64_t{1}, int64_t{0}, int64_t{500'000}, int64_t{17}, int64_t{300'000}}) {
      sent.push_back(values_of(group.rank(), count, at::kFloat).add(static_cast<double>(sent.size())));
      received.push_back(at::full({count}, -1, at::kFloat));
    }
    for (size_t i = 0; i < sent.size(); ++i) {
      work.push_back(group.start_send(sent[i], next));
      work.push_back(group.start_receive(received[i], previous));
    }
    for (auto& w : work) w.wait();
    for (size_t i = 0; i < sent.size(); ++i)
      require(received[i].equal(values_of(previous, sent[i].numel(), at::kFloat).add(static_cast<double>(i))), "message {}", i);
  });
}

TEST_P(Collectives, what_is_under_way_ends_in_any_order_of_waiting) {
  on_all_ranks([&](Group& group) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> work;
    for (int i = 0; i < 6; ++i) {
      tensors.push_back(values_of(group.rank() + i, 50'000, at::kFloat));
      work.push_back(group.start_all_reduce(tensors.back()));
    }
    auto small = at::ones({1}, at::kFloat);
    group.all_reduce(small);  // blocking, behind those
    require(small.item<float>() == static_cast<float>(size()), "the blocking one");
    for (size_t i = work.size(); i-- > 0;) work[i].wait();
    for (int i = 0; i < 6; ++i) {
      auto expected = at::zeros({50'000}, at::kFloat);
      for (int r = 0; r < size(); ++r) expected += values_of(r + i, 50'000, at::kFloat);
      require(tensors[static_cast<size_t>(i)].equal(expected), "number {}", i);
    }
  });
}

// Rounding depends on the order of additions: all ranks must hold the same bits, in every run.
TEST_P(Collectives, sums_of_any_numbers_are_the_same_bits_everywhere) {
  on_all_ranks([&](Group& group) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t count : {int64_t{5}, int64_t{400'000}}) {
        const auto mine = at::sin(at::arange(count, at::kDouble).mul(group.rank() + 1.7)).to(dtype);
        auto first = mine.clone(), second = mine.clone();
        group.all_reduce(first);
        group.all_reduce(second);
        require(first.equal(second), "run to run");
        auto of_rank_0 = first.clone();
        group.broadcast(of_rank_0, 0);
        require(first.equal(of_rank_0), "rank to rank");
        auto exact = at::zeros({count}, at::kDouble);
        for (int r = 0; r < size(); ++r) exact += at::sin(at::arange(count, at::kDouble).mul(r + 1.7)).to(dtype).to(at::kDouble);
        require((first.to(at::kDouble) - exact).abs().max().item<double>() <= (dtype == at::kFloat ? 1e-5 : 0.016),
                "bf16 is added in fp32");
      }
    }
  });
}

TEST_P(Collectives, groups_of_some_ranks_work_side_by_side) {
  if (size() < 3) return;
  run_on(GetParam().fabric, size(), [&](World& world) {
    std::vector<int> even, odd;
    for (int r = 0; r < size(); ++r) (r % 2 ? odd : even).push_back(r);
    std::reverse(even.begin(), even.end());  // the order of the members is the order of the group's ranks
    auto group = world.group("parity", world.rank() % 2 ? odd : even);
    auto x = at::full({4}, world.rank(), at::kFloat);
    group->all_reduce(x);
    const auto& mine = world.rank() % 2 ? odd : even;
    require(x[0].item<int>() == std::accumulate(mine.begin(), mine.end(), 0), "sum within the group");
    auto gathered = at::empty({static_cast<int64_t>(mine.size())}, at::kLong);
    group->all_gather(gathered, at::full({1}, world.rank(), at::kLong));
    for (size_t i = 0; i < mine.size(); ++i) require(gathered[static_cast<int64_t>(i)].item<int>() == mine[i], "order of members");
    world.everyone().barrier();  // rank 0, which has the meeting place, is in one group alone
  });
}

TEST_P(Collectives, traffic_is_counted_to_the_byte) {
  run_on(GetParam().fabric, size(), [&](World& world) {
    std::vector<int> all(static_cast<size_t>(size()));
    std::iota(all.begin(), all.end(), 0);
    auto group = world.group("data", all);
    const int64_t p = size(), n = 12 * p;  // elements of fp32
    auto x = at::ones({n}, at::kFloat), part = at::ones({12}, at::kFloat);
    auto expect = [&, last = AxisTraffic()](const char* what, int64_t sent, int64_t received) mutable {
      const auto now = world.counters().totals()["data"];
      require(now.calls == last.calls + (p > 1 ? 1 : 0), "{}: calls", what);  // alone there is nobody to talk to
      require(now.sent_bytes - last.sent_bytes == sent && now.received_bytes - last.received_bytes == received, "{}: {} and {} bytes", what,
              now.sent_bytes - last.sent_bytes, now.received_bytes - last.received_bytes);
      last = now;
    };
    group->all_reduce(x);
    expect("all_reduce", 2 * (p - 1) * 12 * 4, 2 * (p - 1) * 12 * 4);
    group->reduce_scatter(part, x);
    expect("reduce_scatter", (p - 1) * 12 * 4, (p - 1) * 12 * 4);
    group->all_gather(x, part);
    expect("all_gather", (p - 1) * 12 * 4, (p - 1) * 12 * 4);
    group->broadcast(x, 0);
    expect("broadcast", world.rank() == 0 ? (p - 1) * n * 4 : 0, world.rank() == 0 ? 0 : n * 4);
    group->reduce(x, 0);
    expect("reduce", world.rank() == 0 ? 0 : n * 4, world.rank() == 0 ? (p - 1) * n * 4 : 0);
    group->all_to_all(at::empty_like(x), x);
    expect("all_to_all", (p - 1) * 12 * 4, (p - 1) * 12 * 4);
  });
}

std::string name_of_setting(const ::testing::TestParamInfo<Setting>& info) {
  return name_of(info.param.fabric) + "_" + std::to_string(info.param.size);
}

TEST_P(Collectives, texts_come_together_and_go_out_from_any_rank) {
  const auto text_of = [](int rank, int round) {
    return std::string(static_cast<size_t>(rank * round % 5 * 40'000), static_cast<char>('a' + rank));
  };
  on_all_ranks([&](Group& group) {
    for (int root = 0; root < size(); ++root) {
      for (int round = 0; round < 3; ++round) {
        std::vector<std::string> expected;
        for (int rank = 0; rank < size(); ++rank) expected.push_back(text_of(rank, round));
        const auto gathered = gather_texts(group, expected[static_cast<size_t>(group.rank())], root);
        require(gathered == (group.rank() == root ? expected : std::vector<std::string>()), "gathered on {}", root);
        require(scatter_text(group, gathered, root) == expected[static_cast<size_t>(group.rank())], "scattered from {}", root);
        require(broadcast_text(group, group.rank() == root ? "all hear it" : "", root) == "all hear it", "broadcast from {}", root);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, Collectives,
                         ::testing::Values(Setting{Fabrics::threads, 1}, Setting{Fabrics::threads, 2}, Setting{Fabrics::threads, 3},
                                           Setting{Fabrics::threads, 4}, Setting{Fabrics::threads, 8}),
                         name_of_setting);
INSTANTIATE_TEST_SUITE_P(Processes, Collectives,
                         ::testing::Values(Setting{Fabrics::shared_memory, 2}, Setting{Fabrics::shared_memory, 3},
                                           Setting{Fabrics::gloo, 2}, Setting{Fabrics::gloo, 3}),
                         name_of_setting);

}  // namespace
}  // namespace ingot::comm
