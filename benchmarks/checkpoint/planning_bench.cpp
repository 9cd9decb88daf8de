// Rank 0's part in planning a save, for many ranks, in one process; the metadata; and the check that chunks make up a tensor:
//   cmake --build build/release --target planning_bench && build/release/benchmarks/checkpoint/planning_bench
// Medians of five. With a metadata.bin: seconds to parse and check it.
// The first two layouts are those in which PyTorch's planner was measured.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/files.h"
#include "checkpoint/format/boxes.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/save/save_plan.h"

using namespace ingot;
using namespace ingot::checkpoint;

namespace {

template <class Action>
double median_s(Action&& action) {
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    action();
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return times[2];
}

struct Case {
  std::string name;
  std::vector<Inventory> inventories;
};

// Each rank holds some rows of every tensor, or all of them.
Case small_layout(bool is_cut) {
  constexpr int64_t kRanks = 256, kTensors = 1024;
  Case c{fmt::format("1,024 tensors, 256 ranks, {}", is_cut ? "cut by rows" : "replicated"), {}};
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    auto& inventory = c.inventories.emplace_back();
    for (int64_t t = 0; t < kTensors; ++t) {
      inventory.tensors.push_back({fmt::format("layers.{:04}.weight", t), tensor::DType::fp32, {4096, 1024}});
      inventory.parts.push_back({static_cast<uint32_t>(t), is_cut ? Box{{16 * rank, 0}, {16, 1024}} : tensor::whole({4096, 1024})});
    }
  }
  return c;
}

// 64 pipeline stages of 256 ranks; in a stage 62 tensors, each cut by rows over all of them.
Case large_layout() {
  constexpr int64_t kRanks = 16384, kStage = 256, kTensors = 62;
  Case c{"3,968 tensors, 16,384 ranks, 10^6 parts", {}};
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    auto& inventory = c.inventories.emplace_back();
    for (int64_t t = 0; t < kTensors; ++t) {
      inventory.tensors.push_back({fmt::format("model.layers.{}.weight{:02}", rank / kStage, t), tensor::DType::bf16, {8192, 1024}});
      inventory.parts.push_back({static_cast<uint32_t>(t), {{rank % kStage * 32, 0}, {32, 1024}}});
    }
  }
  return c;
}

void run(const Case& c) {
  std::vector<std::string> sent, shares;
  int64_t bytes = 0;
  for (const auto& inventory : c.inventories) {
    sent.push_back(encode(inventory));
    bytes += static_cast<int64_t>(sent.back().size());
  }
  std::vector<Inventory> inventories;
  const double decode_s = median_s([&] {
    inventories.clear();
    for (const auto& text : sent) inventories.push_back(decode_inventory(text, "bench"));
  });
  SavePlan plan;
  const double plan_s = median_s([&] { plan = plan_save(inventories); });
  const double shares_s = median_s([&] {
    shares.clear();
    for (const auto& share : plan.shares) shares.push_back(encode(share));
  });
  const double cached_s = median_s([&] {  // what a rank does when nothing has changed
    const auto key = encode(inventories[0]);
    volatile uint64_t low = digest_of(key.data(), static_cast<int64_t>(key.size())).low;
    (void)low;
  });
  std::string metadata;
  const double encode_s = median_s([&] { metadata = encode(plan.metadata); });
  const double parse_s = median_s([&] { decode(metadata, "bench"); });
  size_t pieces = 0;
  for (const auto& record : plan.metadata.tensors) pieces += record.pieces.size();
  fmt::print("| {} | {:.1f} MB | {:.3f} | {:.3f} | {:.3f} | **{:.3f}** | {:.2f} ms | {} | {:.2f} MB, {:.0f} B | {:.3f} | {:.3f} |\n",
             c.name, static_cast<double>(bytes) / 1e6, decode_s, plan_s, shares_s, decode_s + plan_s + shares_s, cached_s * 1e3, pieces,
             static_cast<double>(metadata.size()) / 1e6, static_cast<double>(metadata.size()) / static_cast<double>(pieces), encode_s,
             parse_s);
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1) {
    const std::string metadata = base::read_file(arguments[1]);
    std::vector<double> times;
    for (int i = 0; i < 21; ++i) times.push_back(median_s([&] { decode(metadata, "bench"); }));
    std::sort(times.begin(), times.end());
    fmt::print("{}\n", times[10]);
    return 0;
  }
  fmt::print(
      "| layout | inventories | decode, s | plan and check, s | encode shares, s | in all, s | cached, a rank | pieces | metadata, a piece "
      "| encode, s | parse "
      "and check, s |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  run(small_layout(true));
  run(small_layout(false));
  run(large_layout());
  fmt::print("\n| 16,384 chunks, cut in | check, ms |\n|---|---|\n");
  for (const auto& [rows, columns, planes] :
       {std::array<int64_t, 3>{16384, 1, 1}, {1, 16384, 1}, {1, 1, 16384}, {128, 128, 1}, {1, 128, 128}, {32, 32, 16}}) {
    std::vector<Box> boxes;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t column = 0; column < columns; ++column)
        for (int64_t p = 0; p < planes; ++p) boxes.push_back({{r * 3, column * 5, p * 2}, {3, 5, 2}});
    const double check_s = median_s([&] {
      if (!why_not_tiled({rows * 3, columns * 5, planes * 2}, boxes).empty()) std::abort();
    });
    fmt::print("| {} x {} x {} | {:.2f} |\n", rows, columns, planes, check_s * 1e3);
  }
  return 0;
}
