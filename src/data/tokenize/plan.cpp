#include "data/tokenize/plan.h"

#include <sys/stat.h>

#include <algorithm>

#include "base/error.h"
#include "base/version.h"
#include "data/remote/files.h"
#include "data/tokenize/text_hash.h"
#include "data/tokenizer_files.h"

namespace ingot::data {
namespace {

using Json = nlohmann::ordered_json;

const char* name_of(TextFormat format) { return format == TextFormat::automatic ? "auto" : format == TextFormat::jsonl ? "jsonl" : "text"; }

const char* name_of(DocumentSplit split) {
  return split == DocumentSplit::file ? "document-per-file" : split == DocumentSplit::line ? "line" : "paragraph";
}

Json settings_of(const TokenizeOptions& options, TokenType type) {
  Json settings = {{"format", name_of(options.text.format)},
                   {"split", name_of(options.text.split)},
                   {"field", options.text.field},
                   {"skip_bad", options.text.skip_bad},
                   {"strict_utf8", options.text.strict_utf8},
                   {"eos", options.append_eos},
                   {"bos", options.prepend_bos},
                   {"chat_template", options.chat_template ? hash_of(options.chat_template->source()) : ""},
                   {"preferences", options.preferences},
                   {"dtype", name_of(type)},
                   {"block_bytes", options.text.block_bytes},
                   {"piece_bytes", options.piece_bytes}};
  if (options.trim.most_tokens > 0) {
    settings["trim_to"] = options.trim.most_tokens;
    settings["think_tags"] = {options.trim.open, options.trim.close};
  }
  return settings;
}

Json made_from(const TokenizePlan& plan, const Tokenizer& tokenizer, const TokenizeOptions& options) {
  Json inputs = Json::array(), files = Json::object();
  for (const auto& input : plan.inputs) {
    inputs.push_back({{"path", input.path.string()}, {"bytes", input.bytes}, {"modified_ns", input.modified_ns}});
    if (!input.version.empty()) inputs.back()["version"] = input.version;
  }
  for (const auto& [name, content] : files_of(tokenizer)) files[name] = hash_of(content);
  const Json made_from = {{"ingot", base::program_version()},
                          {"inputs", std::move(inputs)},
                          {"tokenizer", std::move(files)},
                          {"settings", settings_of(options, plan.token_type)}};
  return Json::parse(made_from.dump(-1, ' ', false, Json::error_handler_t::replace));  // as it comes back from a file
}

bool can_be_cut(const TokenizePlan::Input& input, const TextOptions& text) {
  return (is_json_lines(input.path, text.format) || text.split != DocumentSplit::file) && is_plain_file(input.path);
}

// Puts ranges into pieces as they come.
class Cutter {
 public:
  Cutter(TokenizePlan& plan, int64_t piece_bytes) : plan_(plan), piece_bytes_(piece_bytes) { plan_.pieces.emplace_back(); }
  void add(size_t number) {
    const auto& input = plan_.inputs[number];
    if (plan_.has_pipe || input.bytes <= piece_bytes_ || !can_be_cut(input, plan_.text)) return put({number}, input.bytes);
    for (int64_t begin = 0; begin < input.bytes; begin += piece_bytes_) {
      const int64_t end = std::min(begin + piece_bytes_, input.bytes);
      put({number, begin, end}, end - begin);
    }
  }

 private:
  void put(TokenizePlan::Range range, int64_t bytes) {
    if (!plan_.has_pipe && plan_.pieces.back().bytes > 0 && plan_.pieces.back().bytes + bytes > piece_bytes_) plan_.pieces.emplace_back();
    plan_.pieces.back().ranges.push_back(range);
    plan_.pieces.back().bytes += bytes;
  }
  TokenizePlan& plan_;
  int64_t piece_bytes_;
};

std::string input_text(const Json& input) {
  return fmt::format("{} with {} bytes", input.value("path", ""), input.value("bytes", int64_t{0}));
}

std::string difference_of_inputs(const Json& before, const Json& now) {
  if (before.size() != now.size()) return fmt::format("the number of inputs was {}, now it is {}", before.size(), now.size());
  for (size_t i = 0; i < now.size(); ++i) {
    if (before[i] == now[i]) continue;
    const auto was = input_text(before[i]), is = input_text(now[i]);
    return was == is ? is + " was changed since" : fmt::format("input {} was {}, now it is {}", i + 1, was, is);
  }
  return "";
}

}  // namespace

TokenizePlan::Input input_of(const fs::path& path) {
  if (is_url(path.string())) {
    const auto remote = remote_files().open(path.string());
    return {path, remote->size_bytes(), 0, remote->version()};
  }
  TokenizePlan::Input input{path, readable_bytes(path)};
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode))
    input.modified_ns = status.st_mtim.tv_sec * int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
  return input;
}

std::vector<FileRange> TokenizePlan::ranges_of(const Piece& piece) const {
  std::vector<FileRange> ranges;
  for (const auto& range : piece.ranges) {
    const auto& input = inputs[range.input];
    if (range.end < 0) {
      ranges.push_back({input.path});
      continue;
    }
    const bool by_paragraph = !is_json_lines(input.path, text.format) && text.split == DocumentSplit::paragraph;
    const auto cut = [&](int64_t nominal) { return document_boundary(input.path, nominal, by_paragraph); };
    if (const FileRange exact{input.path, cut(range.begin), cut(range.end)}; exact.begin < exact.end) ranges.push_back(exact);
  }
  return ranges;
}

TokenizePlan plan_of(const Tokenizer& tokenizer, const TokenizeOptions& options) {
  if (options.inputs.empty()) throw base::UsageError("no input file was named");
  TokenizePlan plan;
  plan.text = options.text;
  plan.token_type = token_type_for(tokenizer.vocab_size());
  for (const auto& path : options.inputs) {
    plan.inputs.push_back(input_of(path));
    plan.total_bytes += plan.inputs.back().bytes;
    plan.has_pipe = plan.has_pipe || (!is_url(path.string()) && !fs::is_regular_file(path));
  }
  Cutter cutter(plan, options.piece_bytes);
  for (size_t i = 0; i < plan.inputs.size(); ++i) cutter.add(i);
  plan.made_from = made_from(plan, tokenizer, options);
  plan.fingerprint = hash_of(plan.made_from.dump());
  return plan;
}

std::string difference(const Json& before, const Json& now) {
  if (before == now) return "";
  try {
    if (auto inputs = difference_of_inputs(before.at("inputs"), now.at("inputs")); !inputs.empty()) return inputs;
    for (const auto* names : {&now.at("settings"), &before.at("settings")})
      for (const auto& [name, unused] : names->items()) {
        const auto was = before.at("settings").value(name, Json()), is = now.at("settings").value(name, Json());
        if (was != is) return fmt::format("'{}' was {}, now it is {}", name, was.dump(), is.dump());
      }
    return before.at("ingot") != now.at("ingot") ? "it was made by another version of ingot" : "the tokenizer is another one";
  } catch (const Json::exception&) {
    return "it does not say of what it was made";
  }
}

}  // namespace ingot::data
