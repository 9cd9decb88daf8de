#include "report/data/tables.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/data/tokens.h"
#include "report/page/html.h"

namespace ingot::report {
namespace {

using data::Tokenizer;

constexpr size_t kFrequent = 40, kNeverUsed = 200;

// Cells are HTML; the first of a row is its head.
std::string table(const std::vector<std::string>& columns, const std::vector<std::vector<std::string>>& rows, const char* style = "") {
  std::string head, body;
  for (size_t i = 0; i < columns.size(); ++i) head += fmt::format("<th scope=\"col\">{}</th>", columns[i]);
  for (const auto& row : rows) {
    body += fmt::format("<tr><th scope=\"row\">{}</th>", row.front());
    for (size_t i = 1; i < row.size(); ++i) body += fmt::format("<td>{}</td>", row[i]);
    body += "</tr>\n";
  }
  return fmt::format(
      "<div class=\"cards\" style=\"--card:100%\"><section class=\"card lists {}\"><div class=\"scroll\" tabindex=\"0\" role=\"group\" "
      "aria-label=\"table\"><table><thead><tr>{}</tr></thead><tbody>\n{}</tbody></table></div></section></div>\n",
      style, head, body);
}

std::string bytes_per_token(const data::DatasetStatistics& dataset) {
  return dataset.decoded_tokens == 0 ? "–"
                                     : number(static_cast<double>(dataset.decoded_bytes) / static_cast<double>(dataset.decoded_tokens));
}

std::string weight_of(const data::PackedPhase& phase, const data::PackedSource& source) {
  double sum = 0;
  for (const auto& other : phase.sources) sum += other.weight;
  return fmt::format("{:g} ({})", source.weight, percent(source.weight, sum));
}

}  // namespace

std::string percent(double part, double whole) {
  if (whole <= 0) return "–";
  const double value = 100 * part / whole;
  if (value == 0) return "0 %";
  return value > 0 && value < 0.01 ? "< 0.01 %" : fmt::format("{:.{}f} %", value, value >= 9.95 ? 1 : 2);
}

std::string dataset_table(const data::Inspection& inspection) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& d : inspection.statistics.datasets)
    rows.push_back(
        {visible_line(d.path), grouped(d.lengths.documents()), grouped(d.tokens), escape(d.token_type),
         number(static_cast<double>(d.tokens) / static_cast<double>(std::max<int64_t>(1, d.lengths.documents()))), bytes_per_token(d),
         percent(static_cast<double>(d.repeated_documents), static_cast<double>(d.compared_documents)),
         d.has_mask ? percent(static_cast<double>(d.counted_tokens - d.unlearned_tokens), static_cast<double>(d.counted_tokens)) : "all"});
  return table({"dataset", "documents", "tokens", "stored as", "tokens a document", "bytes a token", "copies", "tokens with a loss"}, rows);
}

std::string phase_table(const data::PackedPhase& phase) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& s : phase.sources) {
    const auto tokens = static_cast<double>(s.tokens);
    rows.push_back({visible_line(s.path), weight_of(phase, s), grouped(s.documents), grouped(s.tokens), grouped(s.samples * phase.seq_len),
                    number(s.epochs()),
                    fmt::format("{} ({} of tokens)", percent(static_cast<double>(s.longer_documents), static_cast<double>(s.documents)),
                                percent(static_cast<double>(s.longer_tokens), tokens)),
                    percent(static_cast<double>(s.cut_pieces), static_cast<double>(s.pieces)),
                    percent(static_cast<double>(s.padding), static_cast<double>(s.row_tokens + s.padding)),
                    percent(s.left_out_tokens(), tokens)});
  }
  return table({"source", "weight", "documents", "tokens", "tokens drawn", "epochs", fmt::format("longer than {}", grouped(phase.seq_len)),
                "pieces that are cut", "padding", "tokens left out"},
               rows);
}

std::string length_table(const data::Inspection& inspection) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& d : inspection.statistics.datasets) {
    auto& row =
        rows.emplace_back(std::vector<std::string>{visible_line(d.path), grouped(d.lengths.empty()), grouped(d.lengths.shortest())});
    for (const double share : {0.05, 0.25, 0.5, 0.75, 0.95, 0.99}) row.push_back(grouped(d.lengths.quantile(share)));
    row.push_back(grouped(d.lengths.longest()));
  }
  return table({"tokens of a document", "empty", "shortest", "5 %", "25 %", "median", "75 %", "95 %", "99 %", "longest"}, rows);
}

std::string frequent_tokens(const data::VocabularyUse& vocabulary, const Tokenizer* tokenizer) {
  const auto ids = data::by_frequency(vocabulary);
  double all = static_cast<double>(vocabulary.outside), sum = 0;
  for (const int64_t count : vocabulary.counts) all += static_cast<double>(count);
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < std::min(kFrequent, ids.size()); ++i) {
    const auto count = vocabulary.counts[static_cast<size_t>(ids[i])];
    sum += static_cast<double>(count);
    rows.push_back({fmt::format("<span class=\"word\">{}</span>", visible_line(piece_of(tokenizer, ids[i]))), fmt::format("{}", ids[i]),
                    grouped(count), percent(static_cast<double>(count), all), percent(sum, all)});
  }
  return rows.empty() ? "" : table({"token", "id", "occurrences", "of all", "with those above"}, rows, "narrow");
}

std::string never_used_tokens(const data::VocabularyUse& vocabulary, const Tokenizer* tokenizer) {
  std::string items;
  size_t shown = 0;
  int64_t unused = 0;
  for (size_t id = 0; id < vocabulary.counts.size(); ++id) {
    if (vocabulary.counts[id] > 0) continue;
    ++unused;
    if (shown++ >= kNeverUsed) continue;
    const auto number = static_cast<int32_t>(id);
    items += fmt::format("<span class=\"word\" title=\"id {}\">{}</span>\n", number, visible_line(piece_of(tokenizer, number)));
  }
  if (unused == 0 || vocabulary.size == 0) return "";
  return fmt::format("<details><summary>{} ids that never occur{}</summary><p class=\"words\">{}</p></details>\n", grouped(unused),
                     unused > static_cast<int64_t>(kNeverUsed) ? fmt::format(", the first {} of them", kNeverUsed) : "", items);
}

std::string repeated_documents(const data::Inspection& inspection, const Tokenizer* tokenizer) {
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < inspection.repeated.size(); ++i) {
    const auto& one = inspection.statistics.repeated[i];
    rows.push_back({grouped(one.copies), grouped(one.tokens), grouped(one.document),
                    visible_line(inspection.statistics.datasets[one.dataset].path),
                    fmt::format("<span class=\"text\">{}</span>", text_of(inspection.repeated[i], tokenizer))});
  }
  return rows.empty() ? "" : table({"copies", "tokens", "first document", "of", "begins"}, rows, "texts");
}

}  // namespace ingot::report
