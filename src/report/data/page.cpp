#include "report/data/page.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "report/data/plots.h"
#include "report/data/tables.h"
#include "report/data/tokens.h"
#include "report/page/assets.h"
#include "report/page/document.h"
#include "report/page/html.h"
#include "report/plots/figure.h"

namespace ingot::report {
namespace {

using data::Inspection;

struct Totals {
  int64_t documents = 0, tokens = 0, counted = 0, compared = 0, repeated = 0, repeated_tokens = 0, compared_tokens = 0;
};

Totals totals_of(const data::Statistics& statistics) {
  Totals all;
  for (const auto& d : statistics.datasets) {
    all.documents += d.lengths.documents(), all.tokens += d.tokens, all.counted += d.counted_tokens;
    all.compared += d.compared_documents, all.compared_tokens += d.compared_tokens;
    all.repeated += d.repeated_documents, all.repeated_tokens += d.repeated_tokens;
  }
  return all;
}

std::string section(const std::string& title, const std::string& inner) {
  return inner.empty() ? "" : fmt::format("<h2>{}</h2>\n{}", escape(title), inner);
}

std::string paragraph(const std::string& text, const char* style = "verdict") {
  return fmt::format("<p class=\"{}\">{}</p>\n", style, text);
}

std::string vocabulary_sentence(const data::Statistics& statistics, const Totals& all) {
  const auto& v = statistics.vocabulary;
  std::string out = v.size > 0 ? fmt::format("{} of {} ids of the vocabulary occur, {} never.", grouped(v.used()), grouped(v.size),
                                             grouped(v.size - v.used()))
                               : fmt::format("{} ids occur, up to {}.", grouped(v.used()), grouped(v.largest_id));
  if (!statistics.counts_all())
    out +=
        fmt::format(" Counted on a sample of {} of {} tokens, in windows that lie evenly over the data: rare ids may occur all the same.",
                    grouped(all.counted), grouped(all.tokens));
  return out;
}

std::string copies_sentence(const data::Statistics& statistics, const Totals& all) {
  std::string out = all.repeated == 0
                        ? "No document is a copy of another."
                        : fmt::format("{} documents ({}) are copies of one before, token for token; they hold {} of the tokens.",
                                      grouped(all.repeated), percent(static_cast<double>(all.repeated), static_cast<double>(all.compared)),
                                      percent(static_cast<double>(all.repeated_tokens), static_cast<double>(all.compared_tokens)));
  if (statistics.compared_share < 1)
    out +=
        fmt::format(" Compared was a sample of {} of {} documents, chosen by what they hold, so that all copies of one are in it or none.",
                    grouped(all.compared), grouped(all.documents));
  return out;
}

std::string headline(const Inspection& inspection, const Totals& all) {
  const auto& statistics = inspection.statistics;
  std::string out = paragraph(fmt::format("{} documents with {} tokens in {} dataset{}.", grouped(all.documents), grouped(all.tokens),
                                          statistics.datasets.size(), statistics.datasets.size() == 1 ? "" : "s"));
  out += paragraph(vocabulary_sentence(statistics, all)) + paragraph(copies_sentence(statistics, all));
  const auto& v = statistics.vocabulary;
  if (v.size > 0 && v.outside > 0)
    out += paragraph(fmt::format("{} tokens have ids outside of the vocabulary of {}, up to {}: the data is of another tokenizer.",
                                 grouped(v.outside), grouped(v.size), grouped(v.largest_id)),
                     "verdict far");
  for (const auto& remark : inspection.remarks) out += paragraph(visible_line(remark), "verdict far");
  return out;
}

std::string datasets_of(const Inspection& inspection) {
  int64_t decoded = 0;
  for (const auto& dataset : inspection.statistics.datasets) decoded += dataset.decoded_tokens;
  std::string out = dataset_table(inspection);
  if (decoded > 0)
    out += paragraph(fmt::format("Bytes a token are those of the text, without special tokens, of {} tokens at the beginnings of documents "
                                 "that lie evenly over the data.",
                                 grouped(decoded)),
                     "notes");
  return out;
}

std::string phases_of(const Inspection& inspection) {
  std::string out;
  for (const auto& phase : inspection.phases) {
    int64_t read = 0, rows = 0;
    for (const auto& source : phase.sources) read += source.read_rows, rows += source.rows;
    const std::string sampled =
        read < rows ? fmt::format(" Padding, cuts and what is left out are from {} of {} rows.", grouped(read), grouped(rows)) : "";
    out += paragraph(fmt::format("{}{} samples of {} tokens, packed by {}.{}",
                                 inspection.phases.size() > 1 ? "Phase " + visible_line(phase.name) + ": " : "", grouped(phase.samples),
                                 grouped(phase.seq_len), escape(phase.packing), sampled));
    out += phase_table(phase);
  }
  if (out.empty()) return out;
  return out +
         paragraph(
             "Documents and tokens are those of the training split. An epoch is once through all rows of a source. A piece is what a row "
             "has of a document; it is cut where the document goes on behind it. Tokens left out stand in no row.",
             "notes");
}

std::string texts_of(const Inspection& inspection, const data::Tokenizer* tokenizer) {
  std::string out;
  for (const auto& shown : inspection.shown) out += render(shown, tokenizer);
  if (out.empty()) return out;
  out.insert(out.find("<details") + 8, " open");
  return paragraph(
             "Two shades tell tokens apart; pointer, tap and arrow keys say which id one has. <span class=\"tokens key\"><span "
             "class=\"s\">special tokens</span>, <span class=\"b\">parts of a character</span>, <span class=\"u\">tokens without a "
             "loss</span> "
             "and <span class=\"x\">ids outside of the vocabulary</span></span> look like this; what cannot be seen is spelled, as <span "
             "class=\"tokens key\"><i>U+202E</i></span>.",
             "notes") +
         out;
}

}  // namespace

std::string make_data_page(const Inspection& inspection, const data::Tokenizer* tokenizer, std::string_view written) {
  const auto& vocabulary = inspection.statistics.vocabulary;
  const auto all = totals_of(inspection.statistics);
  std::string body = headline(inspection, all) + datasets_of(inspection);
  body += section("What the run draws", phases_of(inspection));
  body += section(inspection.phases.empty() ? "Documents" : "First samples of the run", texts_of(inspection, tokenizer));
  body += section("Lengths", "<div class=\"plots\">\n" + length_plot(inspection) + "</div>\n" + length_table(inspection));
  body += section("Vocabulary", "<div class=\"plots\">\n" + frequency_plot(vocabulary) + "</div>\n" +
                                    frequent_tokens(vocabulary, tokenizer) + never_used_tokens(vocabulary, tokenizer));
  body += section("Copies", repeated_documents(inspection, tokenizer));
  body += fmt::format("<script type=\"application/json\" id=\"numbers\">{}</script>\n", script_json(data::numbers_of(inspection)));
  return document("Data of " + spelled(inspection.title), written, body, kTokenScript);
}

}  // namespace ingot::report
