#include "data/tokenize/piece_record.h"

namespace ingot::data {

using Json = nlohmann::ordered_json;

void add(const TokenizeResult& piece, TokenizeResult& total) {
  total.documents += piece.documents;
  total.tokens += piece.tokens;
  total.input_bytes += piece.input_bytes;
  total.empty_documents += piece.empty_documents;
  total.learned += piece.learned;
  total.bad_lines += piece.bad_lines;
  total.invalid_utf8 += piece.invalid_utf8;
  total.trim.add(piece.trim);
  if (total.first_problem.empty()) total.first_problem = piece.first_problem;
}

namespace {

Json to_json(const TrimCounts& counts) {
  return {{"trimmed", counts.trimmed},       {"left_out", counts.left_out},
          {"cut_tokens", counts.cut_tokens}, {"left_out_tokens", counts.left_out_tokens},
          {"thoughts", counts.thoughts},     {"removed_thoughts", counts.removed_thoughts},
          {"examples", counts.examples}};
}

TrimCounts trim_of(const Json& json) {
  return {json.at("trimmed"),  json.at("left_out"),         json.at("cut_tokens"), json.at("left_out_tokens"),
          json.at("thoughts"), json.at("removed_thoughts"), json.at("examples")};
}

}  // namespace

Json to_json(const TokenizeResult& counts) {
  Json json = {{"documents", counts.documents},       {"tokens", counts.tokens},
               {"text_bytes", counts.input_bytes},    {"empty_documents", counts.empty_documents},
               {"learned_tokens", counts.learned},    {"bad_lines", counts.bad_lines},
               {"invalid_utf8", counts.invalid_utf8}, {"first_problem", counts.first_problem}};
  if (counts.trim.trimmed + counts.trim.left_out > 0) json["trim"] = to_json(counts.trim);
  return json;
}

Json to_json(const PieceRecord& record) {
  Json sources = Json::array();
  for (const auto& source : record.sources)
    sources.push_back({{"path", source.path}, {"begin", source.begin}, {"text_bytes", source.text_bytes}, {"xxh3_128", source.hash}});
  auto json = to_json(record.counts);
  json["has_mask"] = record.has_mask;
  json["sources"] = std::move(sources);
  return json;
}

std::optional<TokenizeResult> counts_of(const Json& json) {
  try {
    TokenizeResult counts;
    counts.documents = json.at("documents");
    counts.tokens = json.at("tokens");
    counts.input_bytes = json.at("text_bytes");
    counts.empty_documents = json.at("empty_documents");
    counts.learned = json.at("learned_tokens");
    counts.bad_lines = json.at("bad_lines");
    counts.invalid_utf8 = json.at("invalid_utf8");
    counts.first_problem = json.at("first_problem");
    if (json.contains("trim")) counts.trim = trim_of(json.at("trim"));
    return counts;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

std::optional<PieceRecord> record_of(const Json& json) {
  const auto counts = counts_of(json);
  if (!counts) return std::nullopt;
  try {
    PieceRecord record{*counts, json.at("has_mask"), {}};
    for (const auto& source : json.at("sources"))
      record.sources.push_back({source.at("path"), source.at("xxh3_128"), source.at("begin"), source.at("text_bytes")});
    return record;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

Json read_json_object(const fs::path& path) {
  std::error_code none;
  if (!fs::exists(path, none)) return nullptr;
  auto json = Json::parse(base::read_file(path), nullptr, false);
  return json.is_object() ? json : Json();
}

void write_json(const fs::path& path, const Json& json) {
  base::write_file_atomically(path, json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace ingot::data
