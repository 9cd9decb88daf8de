// Traces that come back from disk are those that went there; whatever is wrong with a file, they are traced anew.
#include "plan/trace/trace_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "base/files.h"
#include "checkpoint/format/digest.h"
#include "plan/test_support.h"

namespace ingot::plan {
namespace {

namespace fs = std::filesystem;

models::ModelConfig small() {
  models::ModelConfig c;
  c.family = "zaya1";
  c.layers = 4, c.hidden = 64, c.vocab_size = 96, c.heads = 4, c.kv_heads = 2, c.head_dim = 16, c.ffn = 96;
  c.experts = 4, c.expert_ffn = 32, c.router_hidden = 16, c.rope_fraction = 0.5;
  return c;
}

struct Folder {
  fs::path path = fs::temp_directory_path() / ("ingot_traces_" + std::to_string(getpid()));
  Folder() { fs::remove_all(path); }
  ~Folder() { fs::remove_all(path); }
};

void expect_equal(const PassSegment& a, const PassSegment& b) {
  ASSERT_EQ(a.operations.size(), b.operations.size());
  for (size_t i = 0; i < a.operations.size(); ++i) {
    const auto &x = a.operations[i], &y = b.operations[i];
    EXPECT_EQ(std::tie(x.name, x.kind, x.is_backward, x.flops, x.read_bytes, x.written_bytes, x.calls),
              std::tie(y.name, y.kind, y.is_backward, y.flops, y.read_bytes, y.written_bytes, y.calls));
    ASSERT_EQ(x.inputs.size(), y.inputs.size());
    for (size_t j = 0; j < x.inputs.size(); ++j)
      EXPECT_TRUE(x.inputs[j].dtype == y.inputs[j].dtype && x.inputs[j].sizes == y.inputs[j].sizes);
  }
  EXPECT_EQ(a.events.size(), b.events.size());
  EXPECT_EQ(std::tie(a.kept_bytes, a.peak_bytes), std::tie(b.kept_bytes, b.peak_bytes));
}

TEST(TraceStore, gives_back_what_was_kept) {
  const Folder folder;
  const auto model = models::create_model(small());
  const auto pass = trace_pass(*model, {.batch = 2, .seq = 64, .precision = "bf16"});
  optim::OptimizerConfig dion;
  dion.name = "dion";
  const auto update = trace_update(*model, {.precision = "bf16", .optimizer = dion, .replicas = 2, .zero = 1});
  TraceStore(folder.path).keep("pass", pass);
  TraceStore(folder.path).keep("update", update);
  const TraceStore store(folder.path);
  const auto found = store.pass("pass");
  ASSERT_TRUE(found);
  ASSERT_EQ(found->blocks.size(), pass.blocks.size());
  for (size_t i = 0; i < pass.blocks.size(); ++i) {
    expect_equal(found->blocks[i].forward, pass.blocks[i].forward);
    expect_equal(found->blocks[i].backward, pass.blocks[i].backward);
  }
  expect_equal(found->head.forward, pass.head.forward);
  EXPECT_EQ(std::tie(found->period, found->stream_bytes, found->has_neighbours),
            std::tie(pass.period, pass.stream_bytes, pass.has_neighbours));
  const auto updated = store.update("update");
  ASSERT_TRUE(updated);
  EXPECT_EQ(updated->rest_bytes(), update.rest_bytes());
  ASSERT_EQ(updated->sums.size(), update.sums.size());
  ASSERT_FALSE(update.sums.empty());
  EXPECT_EQ(updated->sums[0].kind, update.sums[0].kind);
  EXPECT_EQ(updated->sums[0].bytes, update.sums[0].bytes);
  ASSERT_EQ(updated->operations.size(), update.operations.size());
  ASSERT_FALSE(update.operations.empty());
  EXPECT_EQ(updated->operations.back().name, update.operations.back().name);
  EXPECT_EQ(updated->operations.back().calls, update.operations.back().calls);
  EXPECT_FALSE(store.pass("another"));
}

TEST(TraceStore, takes_no_file_that_is_damaged_cut_or_of_another_key) {
  const Folder folder;
  const auto model = models::create_model(small());
  TraceStore store(folder.path);
  store.keep("key", trace_update(*model, {}));
  const auto file = fs::directory_iterator(folder.path)->path();
  const auto whole = base::read_file(file, 1 << 20);
  const auto with = [&](const std::string& content) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
    return store.update("key").has_value();
  };
  EXPECT_TRUE(with(whole));
  for (size_t at = 0; at < whole.size(); at += 7) {
    auto changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    EXPECT_FALSE(with(changed)) << at;
    EXPECT_FALSE(with(whole.substr(0, at))) << at;
  }
  EXPECT_FALSE(with(whole + "x"));
  // Bytes that say they are whole: whatever is read from them, nothing worse happens.
  constexpr size_t kMagic = 14, kHead = kMagic + 16;  // and the digest
  for (size_t at = kHead; at < whole.size(); ++at) {
    auto changed = whole;
    changed[at] = static_cast<char>(at % 3 == 0 ? 0xff : changed[at] ^ 0x81);
    const auto digest = checkpoint::digest_of(changed.data() + kHead, std::ssize(changed) - static_cast<int64_t>(kHead));
    std::memcpy(changed.data() + kMagic, &digest.low, 8);
    std::memcpy(changed.data() + kMagic + 8, &digest.high, 8);
    with(changed);
    static_cast<void>(store.pass("key"));
  }
  std::ofstream(file, std::ios::binary | std::ios::trunc) << whole;
  EXPECT_TRUE(store.update("key"));
  EXPECT_FALSE(store.pass("key"));  // it is an update
}

TEST(TraceStore, of_a_folder_that_cannot_be_written_keeps_nothing) {
  const Folder folder;
  std::ofstream(folder.path) << "a file";
  TraceStore store(folder.path / "traces");
  const auto model = models::create_model(small());
  store.keep("key", trace_update(*model, {}));
  EXPECT_FALSE(store.update("key"));
  fs::remove(folder.path);
}

TEST(TraceStore, serves_planners_once_the_program_asks_for_it) {
  const Folder folder;
  const auto model = models::create_model(small());
  const PassShape shape{.batch = 2, .seq = 64};
  EXPECT_EQ(trace_store(), nullptr);
  // Of other programs the three latest stay; what is not a program's stays, too.
  const auto traces = folder.path / "traces";
  const auto of_program = [&](int i) { return traces / std::string(32, "0123456789abcdef"[i]); };
  for (int i = 0; i < 6; ++i) {
    fs::create_directories(of_program(i));
    std::ofstream(of_program(i) / "of.trace") << "a trace";
    fs::last_write_time(of_program(i), fs::file_time_type::clock::now() - std::chrono::hours(i + 1));
  }
  for (const auto* name : {"mine", "0123", "0123456789abcdef0123456789ABCDEF"}) fs::create_directories(traces / name / "deep");
  const auto somebodys = of_program(5) / "results.json";
  std::ofstream(somebodys) << "{}";
  fs::last_write_time(of_program(5), fs::file_time_type::clock::now() - std::chrono::hours(6));
  fs::create_directories(folder.path / "beside");
  fs::create_directory_symlink(folder.path / "beside", traces / std::string(32, '9'));
  keep_traces(folder.path.string());
  ASSERT_NE(trace_store(), nullptr);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(fs::exists(of_program(i)), i < 3) << i;
  EXPECT_TRUE(fs::exists(somebodys));
  EXPECT_FALSE(fs::exists(of_program(5) / "of.trace"));
  for (const auto* name : {"mine", "0123", "0123456789abcdef0123456789ABCDEF"}) EXPECT_TRUE(fs::exists(traces / name / "deep")) << name;
  EXPECT_TRUE(fs::exists(folder.path / "beside"));
  const double traced_s = PassTraces().of(*model, shape).seconds;
  PassTraces later;
  EXPECT_EQ(later.of(*model, shape).seconds, traced_s);  // that the first one took
  auto other = shape;
  other.batch = 3;
  EXPECT_NE(later.of(*model, other).seconds, traced_s);
  auto wider = small();
  wider.ffn = 64, wider.expert_ffn = 48;
  EXPECT_NE(later.of(*models::create_model(wider), shape).seconds, traced_s);
  const double updated_s = PassTraces().update_of(*model, {}).seconds;
  EXPECT_EQ(later.update_of(*model, {}).seconds, updated_s);
  UpdateShape normuon;
  normuon.optimizer.name = "normuon";
  EXPECT_NE(later.update_of(*model, normuon).seconds, updated_s);
  keep_traces("");
}

}  // namespace
}  // namespace ingot::plan
