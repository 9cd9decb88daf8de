// The page of ingot data inspect: its numbers are those of the data, and what documents say stays text.
#include "report/data/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/data/tokens.h"
#include "report/page/test_html.h"

namespace ingot::report {
namespace {

using data::ShownTokens;
using testing::HasSubstr;
using testing::Not;

// Ids are the pieces of a list; 0 is special, and some are bytes.
class ListTokenizer : public data::Tokenizer {
 public:
  explicit ListTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) { special_.eos = 0; }
  std::vector<int32_t> encode(std::string_view) const override { return {}; }
  std::vector<int32_t> encode_with_special(std::string_view) const override { return {}; }
  std::string decode(std::span<const int32_t> ids, bool keep_special) const override {
    std::string text;
    for (const int32_t id : ids)
      if (id != 0 || keep_special) text += pieces_.at(static_cast<size_t>(id));
    // As tokenizers do: what is no UTF-8 comes out as U+FFFD.
    const size_t broken = text.find('\xC3');
    if (broken != std::string::npos && (broken + 1 == text.size() || text[broken + 1] != '\xA9')) text.replace(broken, 1, "\xEF\xBF\xBD");
    return text;
  }
  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }
  std::string piece(int32_t id) const override {
    return pieces_.at(static_cast<size_t>(id)) == "\xC3" ? "<0xC3>" : pieces_[static_cast<size_t>(id)];
  }
  int32_t id_of(std::string_view) const override { return -1; }

 private:
  std::vector<std::string> pieces_;
};

ShownTokens shown(std::vector<int32_t> ids, const std::string& source = "web") {
  ShownTokens out{.title = "Document 3", .ids = ids, .learned = std::vector<bool>(ids.size(), true), .pieces = {}};
  out.tokens = static_cast<int64_t>(ids.size());
  out.pieces.push_back({source, 3, 0, out.tokens, ids.size()});
  return out;
}

data::Inspection inspection_of(const std::vector<std::vector<int32_t>>& documents, int64_t vocab_size) {
  data::Inspection out{.title = "web"};
  auto& dataset = out.statistics.datasets.emplace_back();
  dataset.path = "web";
  dataset.token_type = "uint16";
  out.statistics.vocabulary.size = vocab_size;
  out.statistics.vocabulary.counts.resize(static_cast<size_t>(vocab_size));
  for (const auto& document : documents) {
    dataset.lengths.add(static_cast<int64_t>(document.size()));
    dataset.tokens += static_cast<int64_t>(document.size());
    for (const int32_t id : document) ++out.statistics.vocabulary.counts[static_cast<size_t>(id)];
    out.shown.push_back(shown(document));
  }
  dataset.counted_tokens = dataset.tokens;
  dataset.compared_documents = static_cast<int64_t>(documents.size());
  return out;
}

nlohmann::json numbers_in(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"numbers\">";
  const size_t from = page.find(open) + open.size();
  return nlohmann::json::parse(page.substr(from, page.find("</script>", from) - from));
}

TEST(DataPage, hostile_text_stays_text) {
  const std::string evil = "</script><img src=x onerror=alert(1)>\"'&";
  const ListTokenizer tokenizer({"<eos>", evil, "\x1b[31m", "\xE2\x80\xAE", std::string("\0", 1), "\xFF\xFE", "a\nb", "\xEF\xBB\xBF"});
  auto inspection = inspection_of({{1, 2, 3, 4, 5, 6, 7, 0}, {1, 1}}, 8);
  inspection.title = inspection.statistics.datasets[0].path = evil + "\xE2\x80\xAE";
  inspection.shown[0].pieces[0].source = evil;
  inspection.statistics.repeated.push_back({0, 1, 2, 2});
  inspection.repeated.push_back(shown({1, 2, 3, 4, 5, 6, 7}, evil));
  inspection.remarks.push_back(evil);
  const auto page = make_data_page(inspection, &tokenizer, "today");
  EXPECT_EQ(unbalanced(page), "");
  const auto markup = page.substr(0, page.find("<script type=\"application/json\" id="));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(markup, HasSubstr("&lt;/script&gt;&lt;img"));
  for (const auto* hidden : {"\x1b", "\xE2\x80\xAE", "\xFF", "\xEF\xBB\xBF"}) EXPECT_THAT(markup, Not(HasSubstr(hidden)));
  EXPECT_EQ(page.find('\0'), std::string::npos);
  EXPECT_EQ(count(page, "<script"), count(page, "</script>"));
  for (const auto* spelled : {"<i>U+001B</i>[31m", "<i>U+202E</i>", "<i>U+0000</i>", "<i>U+FEFF</i>", "a<i>↵</i>\nb"})
    EXPECT_THAT(markup, HasSubstr(spelled));
  EXPECT_EQ(numbers_in(page)["datasets"][0]["tokens"], 10);
}

TEST(DataPage, tokens_have_their_ids_and_say_what_they_are) {
  const ListTokenizer tokenizer({"<eos>", "caf", "\xC3", "\xA9", "x"});
  auto one = shown({1, 2, 3, 0, 9});
  one.learned[0] = false;
  const auto html = render(one, &tokenizer);
  EXPECT_THAT(html, HasSubstr("<span class=\"u\" title=\"0: id 1  caf  no loss\">caf</span>"));
  EXPECT_THAT(html, HasSubstr("<span class=\"b\" title=\"1: id 2  &lt;0xC3&gt;\">&lt;0xC3&gt;</span>")) << "it has no text of its own";
  EXPECT_THAT(html, HasSubstr(">\xC3\xA9</span>")) << "the character comes with its last byte";
  EXPECT_THAT(html, HasSubstr("<span class=\"s\" title=\"3: id 0  &lt;eos&gt;\">&lt;eos&gt;</span>"));
  EXPECT_THAT(html, HasSubstr("<span class=\"x\" title=\"4: id 9  9\">9</span>"));
  EXPECT_THAT(html, HasSubstr("Document 3: 5 tokens, 4 with a loss</summary>"));
  EXPECT_THAT(html, HasSubstr("document 3 of web, 5 tokens"));
  EXPECT_THAT(html, HasSubstr("tabindex=\"0\""));
  EXPECT_THAT(render(shown({7}), nullptr), HasSubstr("title=\"0: id 7\">7 </span>")) << "without a tokenizer";
}

TEST(DataPage, says_what_the_numbers_say) {
  const ListTokenizer tokenizer({"<eos>", "a", "b", "c"});
  auto inspection = inspection_of({{1, 2, 0}, {1, 0}, {1, 2, 0}}, 4);
  inspection.statistics.datasets[0].repeated_documents = 1;
  inspection.statistics.datasets[0].repeated_tokens = 3;
  inspection.statistics.datasets[0].compared_tokens = 8;
  inspection.statistics.datasets[0].decoded_tokens = 8;
  inspection.statistics.datasets[0].decoded_bytes = 5;
  inspection.statistics.repeated.push_back({0, 0, 3, 2});
  inspection.repeated.push_back(shown({1, 2, 0}));
  const auto page = make_data_page(inspection, &tokenizer, "today"), markup = markup_of(page);
  EXPECT_THAT(markup, HasSubstr("3 documents with 8 tokens in 1 dataset."));
  EXPECT_THAT(markup, HasSubstr("3 of 4 ids of the vocabulary occur, 1 never."));
  EXPECT_THAT(markup, HasSubstr("1 documents (33.3 %) are copies of one before, token for token; they hold 37.5 % of the tokens."));
  EXPECT_THAT(markup, HasSubstr("<td>0.6250</td>")) << "bytes a token";
  EXPECT_THAT(markup, HasSubstr("without special tokens, of 8 tokens"));
  EXPECT_THAT(markup, HasSubstr("<span class=\"text\">ab&lt;eos&gt;</span>"));
  EXPECT_THAT(markup, HasSubstr("1 ids that never occur"));
  EXPECT_THAT(markup, Not(HasSubstr("sample")));
  const auto bars = plot_of(page, "Lengths of documents");
  ASSERT_EQ(bars["bars"].size(), 3U);
  EXPECT_EQ(bars["bars"][2]["heights"][0], 2);
  const auto curve = plot_of(page, "Frequency of tokens by rank");
  EXPECT_EQ(curve["series"][0]["y"], nlohmann::json({3, 3, 2}));
  EXPECT_EQ(curve["x"]["log"], true);
  const auto numbers = numbers_in(page);
  EXPECT_EQ(numbers["vocabulary"]["never_used"], 1);
  EXPECT_EQ(numbers["duplicates"]["most_repeated"][0]["copies"], 2);
}

TEST(DataPage, says_that_numbers_are_of_a_sample) {
  auto inspection = inspection_of({{1, 1}}, 2);
  inspection.statistics.datasets[0].counted_tokens = 1;
  inspection.statistics.compared_share = 0.25;
  const auto page = make_data_page(inspection, nullptr, "today");
  EXPECT_THAT(page, HasSubstr("a sample of 1 of 2 tokens"));
  EXPECT_THAT(page, HasSubstr("Compared was a sample of 1 of 1 documents"));
}

TEST(DataPage, of_a_run_has_its_sources) {
  auto inspection = inspection_of({{1, 1, 1}}, 2);
  data::PackedPhase phase{.name = "main", .packing = "best_fit", .seq_len = 2, .samples = 30, .sources = {}};
  phase.sources.push_back({.path = "web", .weight = 3, .tokens = 100, .documents = 10, .longer_documents = 1, .longer_tokens = 20});
  auto& source = phase.sources.back();
  source.rows = source.read_rows = 60, source.row_tokens = 90, source.padding = 30, source.pieces = 40, source.cut_pieces = 10;
  source.samples = 30;
  inspection.phases = {phase};
  const auto markup = markup_of(make_data_page(inspection, nullptr, "today"));
  EXPECT_THAT(markup, HasSubstr("30 samples of 2 tokens, packed by best_fit."));
  EXPECT_THAT(markup, HasSubstr("<td>3 (100.0 %)</td><td>10</td><td>100</td><td>60</td><td>0.5000</td><td>10.0 % (20.0 % of tokens)</td>"
                                "<td>25.0 %</td><td>25.0 %</td><td>10.0 %</td>"));
  EXPECT_THAT(markup, HasSubstr("First samples of the run"));
}

TEST(DataPage, of_an_empty_dataset_is_a_page) {
  const auto page = make_data_page(inspection_of({}, 0), nullptr, "today");
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_THAT(markup_of(page), Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace ingot::report
