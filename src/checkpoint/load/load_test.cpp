// Saved under one layout, loaded under another, for all pairs: every byte is the same, and is read from storage once.
#include "checkpoint/load/load.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "checkpoint/load/load_plan.h"
#include "checkpoint/load/verify.h"
#include "checkpoint/tests/test_team.h"

namespace ingot::checkpoint {
namespace {

using tensor::DType;
using tensor::LogicalTensor;
using ::testing::HasSubstr;

// All dtypes, all numbers of dims, extents that divide and extents that do not. The bytes are random, so that there are NaN payloads,
// denormals and -0 among them.
const Sample& model() {
  static const Sample sample = [] {
    Sample s(11);
    s.add("embedding", DType::bf16, {50, 24}).add("experts", DType::fp32, {6, 10, 8}).add("head", DType::fp16, {24, 50});
    s.add("fused.gate_up", DType::fp32, {32, 24}).add("conv", DType::fp64, {12, 3, 2}).add("bias", DType::fp32, {7});
    s.add("temperature", DType::fp32, {}).add("empty", DType::bf16, {0, 4}).add("mask", DType::boolean, {3, 5});
    s.add("codes8", DType::fp8_e4m3, {9, 16}).add("codes5", DType::fp8_e5m2, {16}).add("steps", DType::int64, {1});
    s.add("ids", DType::int32, {4, 4}).add("shorts", DType::int16, {2, 2}).add("bytes", DType::int8, {5}).add("raw", DType::uint8, {11});
    s.add("phase", DType::complex64, {4, 3}).add("wave", DType::complex128, {2, 2});
    return s;
  }();
  return sample;
}

/// Which boxes of a tensor a rank holds; `number` is that of the tensor.
using Boxes = std::function<std::vector<Box>(const LogicalTensor& tensor, int number, int rank)>;

struct Layout {
  std::string name;
  int ranks;
  Boxes boxes;
};

tensor::Box part_of(const tensor::Shape& shape, size_t dim, int rank, int ranks) {
  Box box = tensor::whole(shape);
  const int64_t begin = shape[dim] * rank / ranks, end = shape[dim] * (rank + 1) / ranks;
  box.offset[dim] = begin;
  box.extent[dim] = end - begin;
  return box;
}

std::vector<Box> unless_empty(Box box) {
  if (!box.extent.empty() && tensor::element_count(box.extent) == 0) return {};
  return {std::move(box)};
}

// Tensors without the dim are held by all.
Boxes sharded(size_t dim, int ranks) {
  return [=](const LogicalTensor& t, int, int rank) {
    return unless_empty(t.shape.size() > dim ? part_of(t.shape, dim, rank, ranks) : tensor::whole(t.shape));
  };
}

// A flat slice of what a rank of another layout holds, as ZeRO cuts it.
std::vector<Box> flat_slice(const Box& block, int64_t begin, int64_t end) {
  auto boxes = tensor::boxes_of_flat_slice(block.extent, begin, end);
  for (auto& box : boxes)
    for (size_t d = 0; d < box.offset.size(); ++d) box.offset[d] += block.offset[d];
  return boxes;
}

// All tensors behind one another, each padded to 32 elements, cut into equal chunks wherever tensors end.
std::vector<Box> bucket_slice(const LogicalTensor& wanted, int rank, int ranks) {
  const auto padded = [](const LogicalTensor& t) { return (tensor::element_count(t.shape) + 31) / 32 * 32; };
  int64_t total = 0, begin = 0;
  for (const auto& [t, bytes] : model().tensors()) {
    if (t == wanted) begin = total;
    total += padded(t);
  }
  const int64_t chunk = (total + ranks - 1) / ranks, count = tensor::element_count(wanted.shape);
  const int64_t from = std::clamp<int64_t>(chunk * rank - begin, 0, count), to = std::clamp<int64_t>(chunk * (rank + 1) - begin, 0, count);
  return from < to ? tensor::boxes_of_flat_slice(wanted.shape, from, to) : std::vector<Box>();
}

std::vector<Layout> layouts() {
  return {
      {"alone", 1, [](const LogicalTensor& t, int, int) { return unless_empty(tensor::whole(t.shape)); }},
      {"replicated3", 3, [](const LogicalTensor& t, int, int) { return unless_empty(tensor::whole(t.shape)); }},
      {"tensor_rows2", 2, sharded(0, 2)},
      {"tensor_columns3", 3, sharded(1, 3)},
      {"rows8_with_empty_ranks", 8, sharded(0, 8)},
      {"pipeline3_uneven", 3,
       [](const LogicalTensor& t, int number, int rank) {
         return number % 7 / 3 == rank ? unless_empty(tensor::whole(t.shape)) : std::vector<Box>();
       }},
      {"experts2_rest_replicated", 2,
       [](const LogicalTensor& t, int, int rank) {
         return unless_empty(t.shape.size() == 3 ? part_of(t.shape, 0, rank, 2) : tensor::whole(t.shape));
       }},
      {"zero4_flat", 4,
       [](const LogicalTensor& t, int, int rank) {
         const int64_t n = tensor::element_count(t.shape);
         if (t.shape.empty()) return rank == 0 ? std::vector<Box>{tensor::whole(t.shape)} : std::vector<Box>();
         return n * rank / 4 == n * (rank + 1) / 4 ? std::vector<Box>()
                                                   : tensor::boxes_of_flat_slice(t.shape, n * rank / 4, n * (rank + 1) / 4);
       }},
      {"zero3_bucket_with_padding", 3, [](const LogicalTensor& t, int, int rank) { return bucket_slice(t, rank, 3); }},
      {"tensor2_zero2", 4,
       [](const LogicalTensor& t, int, int rank) {
         // Columns by tensor rank, of those a flat slice by data rank; what has no columns is sliced over all four.
         if (t.shape.empty()) return rank == 0 ? std::vector<Box>{tensor::whole(t.shape)} : std::vector<Box>();
         const bool is_cut = t.shape.size() > 1;
         const Box block = is_cut ? part_of(t.shape, 1, rank % 2, 2) : tensor::whole(t.shape);
         const int64_t n = tensor::element_count(block.extent);
         const int slice = is_cut ? rank / 2 : rank, slices = is_cut ? 2 : 4;
         const int64_t from = n * slice / slices, to = n * (slice + 1) / slices;
         return from == to ? std::vector<Box>() : flat_slice(block, from, to);
       }},
      {"hybrid_shards2_replicas2", 4, [](const LogicalTensor& t, int number, int rank) { return sharded(0, 2)(t, number, rank % 2); }},
      {"fused_halves2", 2,
       [](const LogicalTensor& t, int number, int rank) {
         // Each rank has rows of the gate and the same rows of the up projection.
         if (t.name != "fused.gate_up") return sharded(0, 2)(t, number, rank);
         return std::vector<Box>{{{8 * rank, 0}, {8, 24}}, {{16 + 8 * rank, 0}, {8, 24}}};
       }},
      {"interleaved_heads3", 3,
       [](const LogicalTensor& t, int number, int rank) {
         if (t.name != "embedding") return sharded(1, 3)(t, number, rank);
         std::vector<Box> strided;
         for (int64_t head = rank; head < 12; head += 3) strided.push_back({{0, 2 * head}, {50, 2}});
         return strided;
       }},
      {"two_dims2x2", 4,
       [](const LogicalTensor& t, int, int rank) {
         if (t.shape.size() < 2) return t.shape.empty() || rank == 3 ? unless_empty(tensor::whole(t.shape)) : std::vector<Box>();
         Box box = part_of(t.shape, 0, rank / 2, 2);
         const Box columns = part_of(t.shape, 1, rank % 2, 2);
         box.offset[1] = columns.offset[1], box.extent[1] = columns.extent[1];
         return unless_empty(box);
       }},
  };
}

// What a rank of a layout has in memory.
struct Local {
  std::vector<LogicalTensor> tensors;
  std::vector<Box> boxes;
  std::vector<std::string> bytes;

  std::vector<SaveItem> save_items() const {
    std::vector<SaveItem> items;
    for (size_t i = 0; i < boxes.size(); ++i) items.push_back({tensors[i], boxes[i], reinterpret_cast<const std::byte*>(bytes[i].data())});
    // Somebody must say that there are tensors without elements.
    for (const auto& [t, content] : model().tensors())
      if (content.empty()) items.push_back(whole_item(t, nullptr));
    return items;
  }
  std::vector<LoadItem> load_items() {
    std::vector<LoadItem> items;
    for (size_t i = 0; i < boxes.size(); ++i) items.push_back({tensors[i].name, boxes[i], reinterpret_cast<std::byte*>(bytes[i].data())});
    return items;
  }
};

Local local_of(const Layout& layout, int rank, bool filled) {
  Local local;
  int number = 0;
  for (const auto& [t, content] : model().tensors()) {
    for (auto& box : layout.boxes(t, number, rank)) {
      std::string bytes(static_cast<size_t>(tensor::element_count(box.extent) * tensor::size_bytes(t.dtype)), '\x5a');
      if (filled)
        copy_box(reinterpret_cast<const std::byte*>(content.data()), tensor::whole(t.shape), reinterpret_cast<std::byte*>(bytes.data()),
                 box, box, tensor::size_bytes(t.dtype));
      local.tensors.push_back(t);
      local.boxes.push_back(std::move(box));
      local.bytes.push_back(std::move(bytes));
    }
    ++number;
  }
  return local;
}

class Reshard : public TemporaryFolder {
 protected:
  Reshard() : TemporaryFolder(memory_folder()) {}

  void save_under(const Layout& layout, const std::vector<Local>& locals, int64_t step, int64_t piece_limit = 300) {
    const auto errors = run_team(layout.ranks, [&](const Team& team) {
      save(folder, step, locals[static_cast<size_t>(team.rank())].save_items(), {},
           {.piece_limit_bytes = piece_limit, .file_limit_bytes = 4000, .team = &team});
    });
    for (const auto& error : errors) ASSERT_EQ(error, "");
  }
  void load_under(const Layout& layout, int64_t step, std::vector<Local>& locals, const LoadOptions& how = {}) {
    std::vector<LoadReport> reports(static_cast<size_t>(layout.ranks));
    const auto errors = run_team(layout.ranks, [&](const Team& team) {
      auto options = how;
      options.team = &team;
      options.batch_bytes = 1000;
      if (step == 2) options.machine = fmt::format("machine {}", team.rank() / 2);  // two ranks share a cache
      const TeamReader reader(folder / step_name(step), options);
      reports[static_cast<size_t>(team.rank())] = reader.load(locals[static_cast<size_t>(team.rank())].load_items());
    });
    for (const auto& error : errors) ASSERT_EQ(error, "");
    int64_t read = 0, all = 0, sent = 0, received = 0;
    for (const auto& report : reports)
      read += report.phases.read_bytes, sent += report.phases.sent_bytes, received += report.phases.received_bytes;
    for (const auto& [t, content] : model().tensors()) all += static_cast<int64_t>(content.size());
    if (how.verify) {
      EXPECT_EQ(read, all) << "each byte once";
    }
    EXPECT_EQ(sent, received);
    ASSERT_EQ(reports[0].ranks.size(), reports.size());
    EXPECT_EQ(reports[0].ranks.back().read_bytes, reports.back().phases.read_bytes);
  }
  static std::vector<Local> locals_of(const Layout& layout, bool filled) {
    std::vector<Local> locals;
    for (int rank = 0; rank < layout.ranks; ++rank) locals.push_back(local_of(layout, rank, filled));
    return locals;
  }
  static void expect_same(const std::vector<Local>& got, const std::vector<Local>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t rank = 0; rank < got.size(); ++rank)
      for (size_t i = 0; i < got[rank].bytes.size(); ++i)
        ASSERT_EQ(got[rank].bytes[i], expected[rank].bytes[i]) << got[rank].tensors[i].name << " of rank " << rank;
  }
};

TEST_F(Reshard, every_pair_of_layouts_there_and_back) {
  const auto all = layouts();
  for (const auto& a : all) {
    const auto full_a = locals_of(a, true);
    save_under(a, full_a, 1);
    ASSERT_TRUE(verify(folder / step_name(1)).sound());
    EXPECT_TRUE(model().is_in(folder / step_name(1))) << a.name;
    for (const auto& b : all) {
      SCOPED_TRACE(a.name + " -> " + b.name);
      auto got = locals_of(b, false);
      load_under(b, 1, got);
      expect_same(got, locals_of(b, true));
      save_under(b, got, 2, 10000);
      auto back = locals_of(a, false);
      load_under(a, 2, back);
      expect_same(back, full_a);
      if (HasFailure()) return;
    }
  }
}

TEST_F(Reshard, without_checksums_only_what_is_wanted_is_read) {
  const auto all = layouts();
  save_under(all[0], locals_of(all[0], true), 1, 100000);
  for (const auto& layout : all) {
    SCOPED_TRACE(layout.name);
    auto got = locals_of(layout, false);
    load_under(layout, 1, got, {.verify = false});
    expect_same(got, locals_of(layout, true));
  }
}

TEST_F(Reshard, one_damaged_piece_stops_all_ranks_and_is_named) {
  const auto rows = layouts()[2];
  save_under(rows, locals_of(rows, true), 1);
  auto content = content_of(folder / step_name(1) / "data_00001.bin");
  content[200] ^= 1;
  put_content(folder / step_name(1) / "data_00001.bin", content);
  const auto replicas = layouts()[1];
  auto got = locals_of(replicas, false);
  const auto errors = run_team(3, [&](const Team& team) {
    TeamReader(folder / step_name(1), {.team = &team}).load(got[static_cast<size_t>(team.rank())].load_items());
  });
  for (const auto& error : errors) {
    EXPECT_THAT(error, HasSubstr("data_00001.bin"));
    EXPECT_THAT(error, HasSubstr("is damaged"));
    EXPECT_THAT(error, HasSubstr("rank "));
  }
}

TEST_F(Reshard, one_wrong_wish_stops_all_ranks) {
  const auto alone = layouts()[0];
  save_under(alone, locals_of(alone, true), 1);
  std::string bytes(100000, ' ');
  const auto errors = run_team(3, [&](const Team& team) {
    std::vector<LoadItem> items;
    auto* data = reinterpret_cast<std::byte*>(bytes.data());
    if (team.rank() == 1) items.push_back({"embeding", {{0}, {1}}, data});
    if (team.rank() == 2) items.push_back({"bias", {{5}, {3}}, data});
    TeamReader(folder / step_name(1), {.team = &team}).load(items);
  });
  for (const auto& error : errors) {
    EXPECT_THAT(error, HasSubstr("rank 1: "));
    EXPECT_THAT(error, HasSubstr("did you mean 'embedding'"));
    EXPECT_THAT(error, HasSubstr("rank 2: "));
    EXPECT_THAT(error, HasSubstr("is outside tensor 'bias' of shape [7]"));
  }
  for (const auto& error : run_team(2, [&](const Team& team) { TeamReader(folder / "step_00000009", {.team = &team}); }))
    EXPECT_THAT(error, HasSubstr("step_00000009"));
}

TEST(LoadPlan, readers_of_what_all_want_share_it_out) {
  Metadata metadata;
  metadata.files.push_back({"data_00000.bin", 64 + 64 * 4096});
  metadata.tensors.push_back({{"w", DType::fp32, {64, 1024}}, {}});
  for (int64_t row = 0; row < 64; ++row) metadata.tensors[0].pieces.push_back({{{row, 0}, {1, 1024}}, 0, 64 + row * 4096, {}});
  const std::vector<Wants> wants(4, Wants{{{0, tensor::whole({64, 1024})}}});
  const auto plan = plan_load(metadata, wants, 8 * 4096);
  EXPECT_EQ(plan.rounds.size(), 2u);
  std::map<uint32_t, int> reads;
  for (const auto& round : plan.rounds)
    for (const auto& task : round) {
      ++reads[task.reader];
      EXPECT_EQ(task.deliveries.size(), 4u);
    }
  EXPECT_EQ(reads, (std::map<uint32_t, int>{{0, 16}, {1, 16}, {2, 16}, {3, 16}}));
}

// Ranks 0, 1 and 2 on one machine, 3 on another: storage gives each piece once, the cache gives it to two or none, messages go to the rest.
TEST(LoadPlan, ranks_of_one_machine_take_what_they_want_from_its_cache) {
  Metadata metadata;
  metadata.files.push_back({"data_00000.bin", 64 + 8 * 4096});
  metadata.tensors.push_back({{"w", DType::fp32, {8, 1024}}, {}});
  for (int64_t row = 0; row < 8; ++row) metadata.tensors[0].pieces.push_back({{{row, 0}, {1, 1024}}, 0, 64 + row * 4096, {}});
  const auto all = tensor::whole({8, 1024});
  // The last wants a little of each piece, in two parts.
  const std::vector<Wants> wants = {
      {{{0, all}}, "a"}, {{{0, all}}, "a"}, {{{0, {{0, 0}, {8, 100}}}, {0, {{0, 200}, {8, 100}}}}, "a"}, {{{0, all}}, "b"}};
  const auto plan = plan_load(metadata, wants, 1 << 20);
  ASSERT_EQ(plan.rounds.size(), 1u);
  std::map<uint32_t, int> from_storage;  // by piece
  std::map<uint32_t, int64_t> delivered;
  for (const auto& task : plan.rounds[0]) {
    if (!task.is_cached) ++from_storage[task.piece];
    for (const auto& delivery : task.deliveries) {
      delivered[delivery.rank] += delivery.bytes;
      if (task.is_cached) {
        EXPECT_EQ(delivery.rank, task.reader);
        EXPECT_LT(task.reader, 2u) << "for a little of it nobody reads a whole piece";
      } else if (delivery.rank != task.reader) {
        EXPECT_TRUE(delivery.rank >= 2 || task.reader == 3) << delivery.rank << " could have taken it from the cache";
      }
    }
  }
  for (uint32_t piece = 0; piece < 8; ++piece) EXPECT_EQ(from_storage[piece], 1);
  EXPECT_EQ(delivered, (std::map<uint32_t, int64_t>{{0, 8 * 4096}, {1, 8 * 4096}, {2, 8 * 800}, {3, 8 * 4096}}));
}

}  // namespace
}  // namespace ingot::checkpoint
