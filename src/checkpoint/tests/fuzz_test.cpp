// What ranks tell each other in a save or a load, changed on its way: read, or refused with a CheckpointError; never out of bounds, never
// much memory. (The metadata's fuzz test is in metadata_test.cpp, that of safetensors in safetensors_test.cpp.)
#include <gmock/gmock.h>

#include <numeric>

#include "checkpoint/load/load.h"
#include "checkpoint/load/load_plan.h"
#include "checkpoint/tests/test_fuzz.h"
#include "checkpoint/tests/test_team.h"

namespace ingot::checkpoint {
namespace {

using base::CheckpointError;
using tensor::DType;
using ::testing::Each;

// A part's Box is two vectors, which 64 bits of them fill; so many bytes may come of one.
constexpr int64_t kMemoryFactor = 200;

std::vector<Inventory> inventories() {
  std::vector<Inventory> out(2);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const std::string own = rank == 0 ? "c.own" : "d.own";
    out[rank].tensors = {{"a.replicated", DType::fp32, {4, 6}}, {"b.rows", DType::bf16, {8, 3, 5}}, {own, DType::int64, {}}};
    for (int64_t row = 0; row < 4; row += 2) out[rank].parts.push_back({0, {{row, 0}, {2, 6}}});
    for (int64_t row = 4 * rank; row < 4 * rank + 4; ++row) out[rank].parts.push_back({1, {{row, 0, 0}, {1, 3, 5}}});
    out[rank].parts.push_back({2, {}});
    out[rank].has_extras = rank == 1;
  }
  return out;
}

TEST(Fuzz, inventories_are_refused_or_have_one_encoding) {
  std::vector<std::string> valid;
  for (const auto& inventory : inventories()) valid.push_back(encode(inventory));
  const auto result = fuzz<CheckpointError>(valid, 40000, kMemoryFactor, [](const std::string& bytes) {
    ASSERT_EQ(encode(decode_inventory(bytes, "what rank 1 holds")), bytes);
  });
  EXPECT_GT(result.read, 1000);
  EXPECT_GT(result.refused, 10000);
}

TEST(Fuzz, shares_are_refused_or_have_one_encoding) {
  std::vector<std::string> valid;
  for (const auto& share : plan_save(inventories(), {.file_limit_bytes = 200}).shares) valid.push_back(encode(share));
  const auto result = fuzz<CheckpointError>(valid, 40000, kMemoryFactor, [](const std::string& bytes) {
    ASSERT_EQ(encode(decode_share(bytes, "the plan of rank 0")), bytes) << ::testing::PrintToString(bytes);
  });
  EXPECT_GT(result.read, 1000);
  EXPECT_GT(result.refused, 10000);
}

TEST(Fuzz, wants_are_refused_or_have_one_encoding_and_can_be_planned) {
  const auto metadata = plan_save(inventories()).metadata;
  const Wants first{{{0, {{1, 0}, {3, 6}}}, {1, tensor::whole({8, 3, 5})}, {2, {}}}}, second{{{1, {{2, 1, 0}, {5, 1, 4}}}, {3, {}}}};
  const auto result = fuzz<CheckpointError>({encode(first), encode(second)}, 50000, 20 * kMemoryFactor, [&](const std::string& bytes) {
    const auto wants = decode_wants(bytes, metadata, "what rank 1 wants");
    ASSERT_EQ(encode(wants), bytes);
    int64_t delivered = 0, wanted = 0;
    for (const auto& want : wants.wants)
      wanted += tensor::element_count(want.box.extent) * tensor::size_bytes(metadata.tensors[want.tensor].tensor.dtype);
    for (const auto& round : plan_load(metadata, {first, wants}, 100).rounds)
      for (const auto& task : round)
        for (const auto& delivery : task.deliveries) delivered += delivery.rank == 1 ? delivery.bytes : 0;
    ASSERT_EQ(delivered, wanted);
  });
  EXPECT_GT(result.read, 1000);
  EXPECT_GT(result.refused, 5000);
}

TEST(Fuzz, plans_of_changed_inventories_are_refused_or_sound) {
  const auto valid = inventories();
  const auto result = fuzz<CheckpointError>({encode(valid[1])}, 20000, 20 * kMemoryFactor, [&](const std::string& bytes) {
    const auto changed = decode_inventory(bytes, "what rank 1 holds");
    const auto plan = plan_save({valid[0], changed}, {.file_limit_bytes = 200});
    validate(plan.metadata, "the plan");
    for (const auto& share : plan.shares) ASSERT_EQ(decode_share(encode(share), "a share"), share);
  });
  EXPECT_GT(result.read, 300);
  EXPECT_GT(result.refused, 5000);
}

TEST(Fuzz, impossibly_large_tensors_are_refused_by_the_plan) {
  for (const tensor::Shape& shape : {tensor::Shape{int64_t{1} << 62, int64_t{1} << 62}, tensor::Shape{int64_t{1} << 61, 3}}) {
    const Inventory huge{{{"huge", DType::fp64, shape}}, {{0, tensor::whole(shape)}}, false};
    EXPECT_THROW(plan_save({decode_inventory(encode(huge), "what rank 0 holds")}), CheckpointError) << tensor::to_string(shape);
  }
}

// What a rank hears from its team: the answer to each gather or broadcast, and what came in each exchange.
struct Heard {
  std::vector<std::vector<std::string>> answers;
  std::vector<std::string> received;
};

class Listening : public Team {
 public:
  Listening(const Team& team, Heard& heard) : team_(team), heard_(heard) {}
  int rank() const override { return team_.rank(); }
  int size() const override { return team_.size(); }
  std::vector<std::string> gather(const std::string& own) const override { return heard_.answers.emplace_back(team_.gather(own)); }
  std::string broadcast(const std::string& text) const override { return heard_.answers.emplace_back(1, team_.broadcast(text))[0]; }
  void all_to_all(const std::byte* send, const std::vector<int64_t>& send_bytes, std::byte* receive,
                  const std::vector<int64_t>& receive_bytes) const override {
    team_.all_to_all(send, send_bytes, receive, receive_bytes);
    const auto total = std::accumulate(receive_bytes.begin(), receive_bytes.end(), int64_t{0});
    heard_.received.emplace_back(reinterpret_cast<const char*>(receive), static_cast<size_t>(total));
  }

 private:
  const Team& team_;
  Heard& heard_;
};

// Says to one rank of two what it heard before, without anybody else being there.
class Replaying : public Team {
 public:
  Replaying(int rank, const Heard& heard) : rank_(rank), heard_(heard) {}
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  std::vector<std::string> gather(const std::string& own) const override {
    auto all = answer();
    if (rank_ == 0) all.at(0) = own;
    failure_ = own.starts_with('-') ? own : "";
    return all;
  }
  std::string broadcast(const std::string& text) const override {
    const auto heard = answer();
    if (!failure_.empty()) return std::exchange(failure_, "");  // of this rank, of which rank 0 tells all
    return rank_ == 0 ? text : heard.at(0);
  }
  void all_to_all(const std::byte*, const std::vector<int64_t>&, std::byte* receive,
                  const std::vector<int64_t>& receive_bytes) const override {
    const auto total = static_cast<size_t>(std::accumulate(receive_bytes.begin(), receive_bytes.end(), int64_t{0}));
    const auto bytes = exchanges_ < heard_.received.size() ? heard_.received[exchanges_++] : std::string();
    if (bytes.size() != total) throw base::CommError("the other rank sends {} bytes, not {}", bytes.size(), total);
    std::memcpy(receive, bytes.data(), total);
  }

 private:
  std::vector<std::string> answer() const {
    if (calls_ == heard_.answers.size()) throw base::CommError("the other rank has nothing to say");
    return heard_.answers[calls_++];
  }
  int rank_;
  const Heard& heard_;
  mutable size_t calls_ = 0, exchanges_ = 0;
  mutable std::string failure_;
};

class FuzzedTeam : public TemporaryFolder {
 protected:
  FuzzedTeam() : TemporaryFolder(memory_folder()) {}
  const Sample sample_ = mixed_sample(1);
  const CheckpointId id_{3, 4};
  const fs::path hidden_ = folder / hidden_name(step_name(7), to_string(id_));

  void save_one(const Team& team) const {
    save(folder, 7, mixed_items(sample_, team.rank(), 2), {{fmt::format("of rank {}", team.rank()), "note"}},
         {.piece_limit_bytes = 1500, .grace_s = 0, .staging_bytes = 1 << 16, .block_bytes = 1 << 13, .id = id_, .team = &team});
  }
  // All tensors, or only the first row of each, between bytes that nobody may touch.
  void load_all(const Team& team, bool first_rows = false) const {
    constexpr size_t kFence = 16384;
    const TeamReader reader(folder / step_name(7), {.threads = 1, .team = &team});
    std::vector<std::string> loaded;
    std::vector<LoadItem> items;
    for (const auto& [tensor, bytes] : sample_.tensors()) {
      auto box = tensor::whole(tensor.shape);
      if (first_rows && !bytes.empty() && !box.extent.empty()) box.extent[0] = 1;
      const int64_t size_bytes = tensor::element_count(box.extent) * tensor::size_bytes(tensor.dtype);
      loaded.emplace_back(static_cast<size_t>(size_bytes) + 2 * kFence, '\x5a');
      items.push_back({tensor.name, box, reinterpret_cast<std::byte*>(loaded.back().data() + kFence)});
    }
    std::string error;
    try {
      reader.load(items);
    } catch (const base::Error& failure) {
      error = failure.what();
    }
    const std::string fence(kFence, '\x5a');
    for (size_t i = 0; i < loaded.size(); ++i) {
      EXPECT_TRUE(loaded[i].starts_with(fence)) << "written before " << items[i].name;
      EXPECT_TRUE(loaded[i].ends_with(fence)) << "written behind " << items[i].name;
    }
    if (!error.empty()) throw CheckpointError("{}", error);
  }
  Heard heard_by(int rank, const std::function<void(const Team&)>& body) const {
    Heard heard;
    const auto errors = run_team(2, [&](const Team& team) {
      if (team.rank() == rank) body(Listening(team, heard));
      else body(team);
    });
    EXPECT_THAT(errors, Each(""));
    return heard;
  }

  // `body` by one rank that hears each message of the other in turn changed.
  Fuzzed fuzz_each_message(int rank, const Heard& heard, int rounds, const std::function<void(const Team&)>& body) const {
    std::vector<std::string> all;
    for (const auto& answer : heard.answers) all.insert(all.end(), answer.begin(), answer.end());
    Fuzzed sum;
    for (size_t call = 0; call < heard.answers.size(); ++call) {
      const size_t slot = rank == 0 ? 1 : 0;  // rank 0 hears itself first
      if (heard.answers[call].size() <= slot) continue;
      SCOPED_TRACE(fmt::format("call {} of the team", call));
      auto changed = heard;
      const auto use = [&](const std::string& bytes) {
        changed.answers[call][slot] = bytes;
        body(Replaying(rank, changed));
      };
      const auto result = fuzz<base::Error>({heard.answers[call][slot]}, rounds, 100000, use);
      sum.read += result.read, sum.refused += result.refused;
      if (HasFailure()) break;
    }
    EXPECT_GT(sum.refused, rounds);
    return sum;
  }
};

TEST_F(FuzzedTeam, a_rank_that_loads_refuses_what_rank_0_says_or_stays_within_its_memory) {
  ASSERT_THAT(run_team(2, [&](const Team& team) { save_one(team); }), Each(""));
  for (const int rank : {0, 1})
    fuzz_each_message(rank, heard_by(rank, [&](const Team& team) { load_all(team); }), 400, [&](const Team& team) { load_all(team); });
}

// A bug: what arrived was put where rank 0 said that this rank wants it, beyond the memory of its items.
TEST_F(FuzzedTeam, a_rank_that_is_said_to_want_more_than_it_does_refuses) {
  ASSERT_THAT(run_team(2, [&](const Team& team) { save_one(team); }), Each(""));
  const auto heard = heard_by(1, [&](const Team& team) { load_all(team); });
  EXPECT_THROW(load_all(Replaying(1, heard), /*first_rows=*/true), CheckpointError);
}

TEST_F(FuzzedTeam, a_rank_that_saves_refuses_what_rank_0_says) {
  const auto heard = heard_by(1, [&](const Team& team) { save_one(team); });
  fuzz_each_message(1, heard, 250, [&](const Team& team) {
    fs::remove_all(hidden_);
    fs::create_directories(hidden_);  // as rank 0 would have
    save_one(team);
  });
}

TEST_F(FuzzedTeam, what_rank_0_publishes_can_be_opened_whatever_it_is_told) {
  const auto heard = heard_by(0, [&](const Team& team) { save_one(team); });
  fuzz_each_message(0, heard, 250, [&](const Team& team) {
    fs::remove_all(folder);
    save_one(team);
    EXPECT_NO_THROW(load_metadata(folder / step_name(7)));
  });
}

// A bug: metadata was published as the ranks reported it, and no reader accepted it.
TEST_F(FuzzedTeam, a_report_of_extras_outside_their_file_is_refused_before_the_commit) {
  auto heard = heard_by(0, [&](const Team& team) { save_one(team); });
  const std::string name = "of rank 1";
  int changed = 0;
  for (auto& answer : heard.answers) {
    const size_t at = answer.back().find(name);
    if (answer.size() < 2 || at == std::string::npos) continue;
    answer[1][at + name.size()] ^= 1;  // its offset
    ++changed;
  }
  ASSERT_EQ(changed, 1);
  fs::remove_all(folder);
  EXPECT_THROW(save_one(Replaying(0, heard)), CheckpointError);
  EXPECT_FALSE(fs::exists(folder / step_name(7)));
}

TEST(Fuzz, lists_of_texts_are_scattered_or_refused) {
  Heard valid;
  run_team(2, [&](const Team& team) {
    Heard own;
    Listening(team, own).scatter({"first", std::string(300, 'x')});
    if (team.rank() == 1) valid = own;
  });
  Heard heard{{{}}, {}};
  const auto result = fuzz<CheckpointError>(valid.answers.at(0), 20000, kMemoryFactor, [&](const std::string& bytes) {
    heard.answers[0] = {bytes};
    Replaying(1, heard).scatter({});
  });
  EXPECT_GT(result.read, 1000);
  EXPECT_GT(result.refused, 1000);
}

}  // namespace
}  // namespace ingot::checkpoint
