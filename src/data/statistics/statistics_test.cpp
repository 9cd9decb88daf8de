// Numbers of small datasets are counted by hand; samples of large ones are near what all tokens say.
#include "data/statistics/statistics.h"

#include <cmath>

#include "base/random.h"
#include "data/statistics/inspection.h"
#include "data/statistics/packed.h"
#include "data/statistics/shown.h"
#include "data/test_support.h"
#include "data/tokenizer.h"

namespace ingot::data {
namespace {

using ::testing::ElementsAre;

fs::path write_documents(const TemporaryFolder& folder, const std::string& name, const std::vector<std::vector<int32_t>>& documents) {
  IndexedDatasetWriter writer(folder / name, TokenType::uint16);
  for (const auto& document : documents) writer.append(document), writer.end_document();
  writer.finish();
  return folder / name;
}

Statistics statistics_of_all(const std::vector<fs::path>& paths, const StatisticsOptions& options = {},
                             const Tokenizer* tokenizer = nullptr) {
  std::vector<std::unique_ptr<IndexedDataset>> opened;
  std::vector<const IndexedDataset*> datasets;
  for (const auto& path : paths) datasets.push_back(opened.emplace_back(std::make_unique<IndexedDataset>(path)).get());
  return statistics_of(datasets, tokenizer, options);
}

TEST(LengthCounts, bins_and_quantiles_are_those_of_the_lengths) {
  LengthCounts lengths;
  for (const int64_t tokens : {0, 1, 2, 3, 4, 5, 6, 7, 100, 1000}) lengths.add(tokens);
  EXPECT_EQ(lengths.documents(), 10);
  EXPECT_EQ(lengths.empty(), 1);
  EXPECT_EQ(lengths.shortest(), 0);
  EXPECT_EQ(lengths.longest(), 1000);
  EXPECT_EQ(lengths.quantile(0.5), 4);
  EXPECT_EQ(lengths.quantile(0.1), 0);
  EXPECT_EQ(lengths.quantile(0.9), 100);
  EXPECT_EQ(lengths.quantile(1), 1000);
  const auto bins = lengths.bins();
  ASSERT_EQ(bins.size(), 19U) << "1, 2, 3, 4–5, 6–7, 8–11, …, 724–1023";
  EXPECT_EQ(bins[3].from, 4);
  EXPECT_EQ(bins[3].to, 5);
  EXPECT_EQ(bins[3].documents, 2);
  EXPECT_EQ(bins[3].tokens, 9);
  EXPECT_EQ(bins[7].from, 16);
  EXPECT_EQ(bins[7].to, 22);
  EXPECT_EQ(bins.back().from, 724);
  EXPECT_EQ(bins.back().tokens, 1000);
  for (size_t i = 1; i < bins.size(); ++i) EXPECT_EQ(bins[i].from, bins[i - 1].to + 1);
}

TEST(LengthCounts, long_documents_stay_in_their_bins) {
  LengthCounts lengths;
  for (int64_t tokens = 1; tokens < int64_t{1} << 40; tokens = tokens * 5 / 4 + 1) lengths.add(tokens);
  int64_t documents = 0;
  for (const auto& bin : lengths.bins()) {
    documents += bin.documents;
    EXPECT_GE(bin.tokens, bin.documents * bin.from);
    EXPECT_LE(bin.tokens, bin.documents * bin.to);
  }
  EXPECT_EQ(documents, lengths.documents());
  EXPECT_TRUE(LengthCounts().bins().empty());
  EXPECT_EQ(LengthCounts().quantile(0.5), 0);
}

TEST(Statistics, of_a_small_dataset_are_counted_by_hand) {
  const TemporaryFolder folder;
  const auto all = statistics_of_all({write_documents(folder, "a", {{5, 6}, {7}, {}, {5, 6}, {6, 5}, {5, 6}, {7}})}, {.vocab_size = 8});
  ASSERT_EQ(all.datasets.size(), 1U);
  const auto& one = all.datasets.front();
  EXPECT_EQ(one.tokens, 10);
  EXPECT_EQ(one.lengths.documents(), 7);
  EXPECT_EQ(one.counted_tokens, 10);
  EXPECT_TRUE(all.counts_all());
  EXPECT_THAT(all.vocabulary.counts, ElementsAre(0, 0, 0, 0, 0, 4, 4, 2));
  EXPECT_EQ(all.vocabulary.used(), 3);
  EXPECT_EQ(all.vocabulary.outside, 0);
  EXPECT_EQ(all.vocabulary.largest_id, 7);
  EXPECT_EQ(all.compared_share, 1);
  EXPECT_EQ(one.compared_documents, 6) << "the empty one is not compared";
  EXPECT_EQ(one.repeated_documents, 3);
  EXPECT_EQ(one.repeated_tokens, 5);
  ASSERT_EQ(all.repeated.size(), 2U);
  EXPECT_EQ(all.repeated[0].document, 0);
  EXPECT_EQ(all.repeated[0].copies, 3);
  EXPECT_EQ(all.repeated[0].tokens, 2);
  EXPECT_EQ(all.repeated[1].document, 1);
  EXPECT_EQ(all.repeated[1].copies, 2);
}

TEST(Statistics, documents_are_compared_over_datasets) {
  const TemporaryFolder folder;
  const auto all = statistics_of_all({write_documents(folder, "a", {{1, 2}, {3}}), write_documents(folder, "b", {{4}, {3}, {1, 2}})});
  EXPECT_EQ(all.datasets[0].repeated_documents, 0);
  EXPECT_EQ(all.datasets[1].repeated_documents, 2);
  ASSERT_EQ(all.repeated.size(), 2U);
  EXPECT_EQ(all.repeated[0].dataset, 0U);
}

TEST(Statistics, ids_outside_the_vocabulary_and_what_is_not_learned_are_counted) {
  const TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "m", TokenType::int32);
  writer.append(std::vector<int32_t>{1, 2, 2'000'000'000}, false);
  writer.append(std::vector<int32_t>{3, 9});
  writer.finish();
  const auto known = statistics_of_all({folder / "m"}, {.vocab_size = 4});
  EXPECT_EQ(known.vocabulary.outside, 2);
  EXPECT_EQ(known.vocabulary.largest_id, 2'000'000'000);
  EXPECT_TRUE(known.datasets[0].has_mask);
  EXPECT_EQ(known.datasets[0].unlearned_tokens, 3);
  const auto unknown = statistics_of_all({folder / "m"});
  EXPECT_EQ(unknown.vocabulary.outside, 1) << "a huge id makes no huge table";
  EXPECT_LE(unknown.vocabulary.counts.size(), size_t{1} << 22);
}

TEST(Statistics, bytes_per_token_are_those_of_the_text) {
  const TemporaryFolder folder;
  const auto tokenizer = load_tokenizer("src/data/testdata/export_unigram.model");
  const std::string text = "In the beginning";
  auto ids = tokenizer->encode(text);
  ids.push_back(tokenizer->special().eos);
  const auto all = statistics_of_all({write_documents(folder, "t", {ids, ids})}, {}, tokenizer.get());
  EXPECT_EQ(all.datasets[0].decoded_tokens, static_cast<int64_t>(2 * ids.size()));
  EXPECT_EQ(all.datasets[0].decoded_bytes, static_cast<int64_t>(2 * text.size())) << "eos is no text";
}

// 40,000 documents, a fifth of them copies, ids that grow along the file so that a sample of one end would be seen.
TEST(Statistics, a_sample_says_what_all_tokens_say) {
  const TemporaryFolder folder;
  constexpr int kDocuments = 40'000;
  {
    IndexedDatasetWriter writer(folder / "s", TokenType::uint16);
    for (int i = 0; i < kDocuments; ++i) {
      const int of = i % 5 == 4 ? i - 1 : i;
      std::vector<int32_t> document(static_cast<size_t>(20 + of % 40));
      for (size_t k = 0; k < document.size(); ++k)
        document[k] = of / 40 + static_cast<int32_t>(base::uniform_at(static_cast<uint64_t>(of), k) * 50);
      writer.add_document(document);
    }
    writer.finish();
  }
  const auto all = statistics_of_all({folder / "s"}),
             some = statistics_of_all({folder / "s"}, {.most_tokens = 200'000, .most_documents = 6000});
  EXPECT_EQ(all.datasets[0].repeated_documents, kDocuments / 5);
  const auto &a = all.datasets[0], &s = some.datasets[0];
  EXPECT_EQ(s.tokens, a.tokens);
  EXPECT_EQ(s.lengths.quantile(0.5), a.lengths.quantile(0.5)) << "lengths are never sampled";
  EXPECT_FALSE(some.counts_all());
  EXPECT_NEAR(static_cast<double>(s.counted_tokens), 200'000, 8192);
  EXPECT_LT(some.compared_share, 0.16);
  EXPECT_NEAR(static_cast<double>(s.compared_documents), some.compared_share * kDocuments, 400);
  EXPECT_NEAR(static_cast<double>(s.repeated_documents) / static_cast<double>(s.compared_documents), 0.2, 0.02);
  const auto mean_id = [](const Statistics& of) {
    double sum = 0, count = 0;
    for (size_t id = 0; id < of.vocabulary.counts.size(); ++id)
      sum += static_cast<double>(id) * static_cast<double>(of.vocabulary.counts[id]),
          count += static_cast<double>(of.vocabulary.counts[id]);
    return sum / count;
  };
  EXPECT_NEAR(mean_id(some) / mean_id(all), 1, 0.05);
}

DataConfig config_of(const TemporaryFolder& folder, const std::string& packing) {
  DataConfig config;
  config.sources = {{write_documents(folder, "a", {{1, 2, 3}, {4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, {14, 15}}).string(), 3},
                    {write_documents(folder, "b", {{21, 22, 23, 24, 25}, {26, 27, 28, 29}}).string(), 1}};
  config.seq_len = 4;
  config.packing = packing;
  return config;
}

TEST(PackedPhase, of_a_stream_is_counted_by_hand) {
  const TemporaryFolder folder;
  const auto config = config_of(folder, "stream");
  const auto phase = packed_phase(Loader(config, Split::train), config, "main", 12);
  ASSERT_EQ(phase.sources.size(), 2U);
  const auto& a = phase.sources[0];
  EXPECT_EQ(a.tokens, 15);
  EXPECT_EQ(a.documents, 3);
  EXPECT_EQ(a.longer_documents, 1);
  EXPECT_EQ(a.longer_tokens, 10);
  EXPECT_EQ(a.rows, 3);  // 1 2 3 4 | 5 6 7 8 | 9 10 11 12
  EXPECT_EQ(a.padding, 0);
  EXPECT_EQ(a.pieces, 4);
  EXPECT_EQ(a.cut_pieces, 3);
  EXPECT_EQ(a.left_out_tokens(), 3);
  EXPECT_EQ(a.samples, 9);
  EXPECT_EQ(a.epochs(), 3);
  EXPECT_EQ(phase.sources[1].samples, 3);
  EXPECT_EQ(phase.sources[1].rows, 2);
  EXPECT_EQ(phase.sources[1].epochs(), 1.5);
}

TEST(PackedPhase, of_best_fit_has_the_padding_of_its_rows) {
  const TemporaryFolder folder;
  const auto config = config_of(folder, "best_fit");
  const Loader loader(config, Split::train);
  const auto phase = packed_phase(loader, config, "main", 12);
  for (size_t s = 0; s < 2; ++s) {
    const auto& source = phase.sources[s];
    EXPECT_EQ(source.read_rows, source.rows);
    EXPECT_EQ(source.row_tokens + source.padding, 4 * source.rows);
    EXPECT_EQ(source.row_tokens + static_cast<int64_t>(source.left_out_tokens()), source.tokens);
  }
  EXPECT_EQ(phase.sources[1].tokens, 9);
  EXPECT_EQ(phase.sources[1].left_out_tokens(), 1) << "25 alone has nothing to predict";
}

TEST(ShownTokens, a_sample_says_what_its_tokens_belong_to) {
  const TemporaryFolder folder;
  const auto config = config_of(folder, "stream");
  const Loader loader(config, Split::train);
  bool has_seen_first = false;
  for (int64_t sample = 0; sample < 4; ++sample) {
    const auto shown = shown_sample(loader, config, sample, 100);
    ASSERT_EQ(shown.ids.size(), 4U);
    ASSERT_EQ(shown.learned.size(), 4U);
    if (shown.ids.front() != 1) continue;
    has_seen_first = true;
    ASSERT_EQ(shown.pieces.size(), 2U);
    EXPECT_EQ(shown.pieces[0].document, 0);
    EXPECT_EQ(shown.pieces[0].tokens, 3U);
    EXPECT_EQ(shown.pieces[1].document, 1);
    EXPECT_EQ(shown.pieces[1].first, 0);
    EXPECT_EQ(shown.pieces[1].document_tokens, 10);
    EXPECT_EQ(shown.pieces[1].source, config.sources[0].path);
    EXPECT_THAT(shown.learned, ElementsAre(false, true, true, false)) << "nothing predicts the first token of a document";
  }
  EXPECT_TRUE(has_seen_first);
  const auto cut = shown_sample(loader, config, 0, 2);
  EXPECT_EQ(cut.ids.size(), 2U);
  EXPECT_EQ(cut.tokens, 4);
}

TEST(Inspection, of_a_run_has_each_dataset_once_and_the_samples_of_each_phase) {
  const TemporaryFolder folder;
  auto first = config_of(folder, "stream"), second = first;
  second.sources.pop_back();
  second.seq_len = 2;
  const auto run = inspect_run("run.toml", {{"short", first, {}, 12}, {"long", second, {}, 1}}, nullptr, {.samples = 2, .statistics = {}});
  EXPECT_EQ(run.statistics.datasets.size(), 2U);
  ASSERT_EQ(run.phases.size(), 2U);
  EXPECT_EQ(run.phases[1].sources.size(), 1U);
  EXPECT_EQ(run.phases[1].seq_len, 2);
  ASSERT_EQ(run.shown.size(), 3U) << "the second phase draws one sample";
  EXPECT_EQ(run.shown[2].title, "Phase long, Sample 0");
  EXPECT_EQ(run.shown[2].ids.size(), 2U);
  EXPECT_TRUE(run.remarks.empty());
}

TEST(Inspection, says_at_what_a_run_would_end) {
  const TemporaryFolder folder;
  const auto config = config_of(folder, "stream");
  const auto run = inspect_run("run.toml", {{"main", config, {.vocab_size = 5}, 12}}, nullptr, {.statistics = {.vocab_size = 5}});
  ASSERT_EQ(run.remarks.size(), 1U);
  EXPECT_THAT(run.remarks[0], ::testing::HasSubstr("the model's vocabulary ends at 4"));
  EXPECT_EQ(run.statistics.vocabulary.outside, 20);
  EXPECT_EQ(run.phases[0].sources[0].rows, 3) << "all else is there";
}

TEST(ShownTokens, a_document_is_shown_from_its_beginning_with_its_mask) {
  const TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "m", TokenType::int32);
  writer.add_document(std::vector<int32_t>{1});
  writer.append(std::vector<int32_t>{2, 3}, false);
  writer.append(std::vector<int32_t>{4, 5});
  writer.finish();
  const auto shown = shown_document(IndexedDataset(folder / "m"), "m", 1, 3);
  EXPECT_THAT(shown.ids, ElementsAre(2, 3, 4));
  EXPECT_THAT(shown.learned, ElementsAre(false, false, true));
  EXPECT_EQ(shown.tokens, 4);
}

}  // namespace
}  // namespace ingot::data
