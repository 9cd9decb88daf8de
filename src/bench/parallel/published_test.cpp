#include "bench/parallel/published.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/test_night.h"
#include "bench/parallel/figures.h"
#include "bench/parallel/model.h"

namespace ingot::bench {
namespace {

using schedule::Layer, schedule::Layout, schedule::Method, schedule::Pass;

const PublishedClusters& clusters() {
  static const auto all = read_published_clusters("configs/clusters");
  return all;
}

PublishedRow row_of(const std::string& quantity) {
  static const auto rows = published_rows(clusters());
  for (const auto& row : rows)
    if (row.quantity == quantity) return row;
  throw base::DataError("no row '{}'", quantity);
}

// Which rows agree is part of what the document says. By day its test below holds the same numbers: they take 18 s each time.
TEST(Published, what_does_not_depend_on_kernels_agrees) {
  if (!base::tests_run_at_night()) GTEST_SKIP() << "by day the document's test has these numbers";
  EXPECT_TRUE(row_of("tokens from which TSP receives less than TP, forward").agrees());
  EXPECT_TRUE(row_of("peak memory, TSP : TP 4 x SP 2, 128K").agrees());
  EXPECT_FALSE(row_of("throughput of LASP-2 above Ring, 2048K on 64 GPUs").agrees());
  // So do orders.
  for (const char* other : {"TP, 16K", "TP, 128K", "TP 4 x SP 2, 128K", "TP 2 x SP 4, 128K"})
    EXPECT_LT(row_of(std::string("peak memory, TSP : ") + other).modelled, 1) << other;
  for (const int ranks : {32, 128}) {
    const auto beyond = [&](const char* method) {
      return row_of(fmt::format("operator beyond DP, {} GPUs, 16K each, {}", ranks, method)).modelled;
    };
    EXPECT_GT(beyond("lasp1"), beyond("lasp2"));
  }
  for (const int ranks : {8, 64})
    EXPECT_GT(row_of(fmt::format("throughput lost against DP, {} GPUs, 32K each, lasp2", ranks)).modelled,
              row_of(fmt::format("throughput lost against DP, {} GPUs, 32K each, zeco", ranks)).modelled);
}

TEST(Published, a_row_agrees_within_its_tolerance) {
  EXPECT_TRUE((PublishedRow{"", "", "", 2, 2.2, 0.1001, ""}.agrees()));
  EXPECT_FALSE((PublishedRow{"", "", "", 2, 2.3, 0.1, ""}.agrees()));
  EXPECT_FALSE((PublishedRow{"", "", "", 2, 1.7, 0.1, ""}.agrees()));
}

TEST(Training, memory_of_many_layers_is_two_and_the_difference_of_three) {
  for (const auto method : {Method::tp, Method::tsp, Method::sp, Method::tp_sp}) {
    Layout layout{.method = method,
                  .layer = Layer::block,
                  .pass = Pass::both,
                  .sizes = {.hidden = 256, .heads = 8, .kv_heads = 8, .head_dim = 32, .ffn = 1024, .seq = 4096},
                  .ranks = 4,
                  .tensor_ranks = 2,
                  .recomputes = true};
    const auto predicted = training_peak_bytes(layout, 5, clusters().mi300x);
    layout.blocks = 5;
    const int64_t weights = 5 * 4 * 256 * (256 + 3 * 256) / (method == Method::sp ? 1 : method == Method::tp_sp ? 2 : 4);
    EXPECT_NEAR(static_cast<double>(predicted), static_cast<double>(model_layer(layout, clusters().mi300x).layer.peak_bytes + 12 * weights),
                0.02 * static_cast<double>(predicted))
        << name_of(method);
  }
}

TEST(Published, json_has_a_row_for_each) {
  const auto json = nlohmann::json::parse(published_json({{"TSP", "q", "GB", 2, 2.2, 0.2, "n"}}));
  EXPECT_EQ(json.at(0).at("modelled"), 2.2);
  EXPECT_EQ(json.at(0).at("agrees"), true);
}

// Nothing keeps the first rank from beginning the next layer before the last has ended this one.
TEST(Training, chains_of_layers_overlap_unless_ranks_are_kept_in_step) {
  const Layout layout{.method = Method::lasp1,
                      .layer = Layer::block,
                      .pass = Pass::both,
                      .sizes = {.hidden = 1024, .heads = 8, .kv_heads = 8, .head_dim = 128, .ffn = 4096, .seq = 8 * 1024},
                      .ranks = 8,
                      .zigzag = false,
                      .syncs_gradients = false};
  auto lasp2 = layout;
  lasp2.method = Method::lasp2;
  const auto& cluster = clusters().h100;
  EXPECT_LT(steady_layer_s(layout, cluster), 1.05 * steady_layer_s(lasp2, cluster));
  const auto in_step_s = [&](const Layout& l) { return layer_in_step_s(l, cluster) - steady_layer_s(l, cluster); };
  EXPECT_GT(in_step_s(layout), 3 * in_step_s(lasp2));
}

// `cmake --build build/release --target parallel_figures` writes both anew.
TEST(Document, tables_and_figures_are_what_the_code_makes) {
  const auto document = base::read_file("docs/parallel-methods.md");
  EXPECT_TRUE(document == with_current_tables(document, "configs/clusters")) << "build the target parallel_figures";
  for (const auto& figure : figures()) {
    EXPECT_TRUE(base::read_file("docs/parallel-methods/" + figure.file) == figure.svg)
        << figure.file << ": build the target parallel_figures";
    EXPECT_NE(document.find("(parallel-methods/" + figure.file + ")"), std::string::npos) << figure.file;
  }
}

TEST(Document, a_marker_that_is_gone_is_named) {
  try {
    with_current_tables("nothing", "configs/clusters");
    FAIL();
  } catch (const base::DataError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("<!-- published ratios -->"));
  }
}

}  // namespace
}  // namespace ingot::bench
