#include "data/hugging_face/decoder.h"

#include <algorithm>

#include "base/text.h"
#include "data/hugging_face/byte_level.h"
#include "data/hugging_face/fields.h"
#include "data/hugging_face/normalizer.h"
#include "data/sentencepiece_model.h"
#include "data/utf8.h"

namespace ingot::data {
namespace {

template <class Change>
class SimpleDecoder : public Decoder {
 public:
  explicit SimpleDecoder(Change change) : change_(std::move(change)) {}
  void apply(std::vector<std::string>& tokens) const override { change_(tokens); }

 private:
  Change change_;
};

template <class Change>
std::unique_ptr<Decoder> simple(Change change) {
  return std::make_unique<SimpleDecoder<Change>>(std::move(change));
}

class Sequence : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    for (const auto& part : parts) part->apply(tokens);
  }
  std::vector<std::unique_ptr<Decoder>> parts;
};

void join_bytes(std::vector<std::string>& tokens) {
  std::string bytes;
  for (const auto& token : tokens) {
    if (!append_byte_level(token, bytes)) bytes += token;
  }
  int64_t replaced = 0;
  tokens = {replace_invalid_utf8(bytes, replaced)};
}

// Runs of byte tokens become their text, or one U+FFFD per byte where they form none.
void fall_back_from_bytes(std::vector<std::string>& tokens) {
  std::vector<std::string> out;
  std::string run;
  const auto flush = [&] {
    if (run.empty()) return;
    if (is_valid_utf8(run)) out.push_back(run);
    else out.insert(out.end(), run.size(), "\xEF\xBF\xBD");
    run.clear();
  };
  for (auto& token : tokens) {
    if (const int byte = byte_of_piece(token); byte >= 0) {
      run += static_cast<char>(byte);
    } else {
      flush();
      out.push_back(std::move(token));
    }
  }
  flush();
  tokens = std::move(out);
}

std::string strip_token(const std::string& token, const std::string& content, int64_t start, int64_t stop) {
  std::string_view rest = token;
  for (; start > 0 && rest.starts_with(content); --start) rest.remove_prefix(content.size());
  for (; stop > 0 && rest.ends_with(content); --stop) rest.remove_suffix(content.size());
  return std::string(rest);
}

std::unique_ptr<Decoder> make_metaspace(const nlohmann::json& json) {
  const auto mark = Regex::literal(json.at("replacement").get<std::string>());
  const bool prepended =
      field_or<std::string>(json, "prepend_scheme", field_or(json, "add_prefix_space", true) ? "always" : "never") != "never";
  return simple([mark, prepended](std::vector<std::string>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = replace_all(mark, tokens[i], i == 0 && prepended ? "" : " ");
  });
}

void replace_text(std::string& text, std::string_view what, std::string_view with) {
  for (size_t at = 0; !what.empty() && (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
}

// English as it is written: no space before punctuation and what is left of a contraction.
void clean_up(std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> kForms[] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                                                      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                                                      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [what, with] : kForms) replace_text(text, what, with);
}

std::unique_ptr<Decoder> make_wordpiece(const nlohmann::json& json) {
  return simple(
      [prefix = json.at("prefix").get<std::string>(), cleanup = json.at("cleanup").get<bool>()](std::vector<std::string>& tokens) {
        for (size_t i = 0; i < tokens.size(); ++i) {
          if (i > 0) tokens[i] = tokens[i].starts_with(prefix) ? tokens[i].substr(prefix.size()) : " " + tokens[i];
          if (cleanup) clean_up(tokens[i]);
        }
      });
}

std::unique_ptr<Decoder> make_bpe(const nlohmann::json& json) {
  const auto suffix = json.at("suffix").get<std::string>();
  if (suffix.empty()) throw base::DataError("its BPEDecoder has no suffix");
  return simple([suffix](std::vector<std::string>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) replace_text(tokens[i], suffix, i + 1 < tokens.size() ? " " : "");
  });
}

// Connectionist temporal classification: a token said several times in a row is one, and the pad token is nothing.
std::unique_ptr<Decoder> make_ctc(const nlohmann::json& json) {
  return simple([pad = json.at("pad_token").get<std::string>(), border = json.at("word_delimiter_token").get<std::string>(),
                 cleanup = json.at("cleanup").get<bool>()](std::vector<std::string>& tokens) {
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    for (auto& token : tokens) {
      replace_text(token, pad, "");
      if (!cleanup) continue;
      clean_up(token);
      replace_text(token, border, " ");
    }
    std::erase(tokens, "");
  });
}

std::unique_ptr<Decoder> make(const nlohmann::json& json, int depth) {
  check_depth(depth);
  const std::string kind = kind_of(json);
  if (kind.empty()) return simple([](std::vector<std::string>& tokens) { tokens = {base::join(tokens, " ")}; });
  if (kind == "Sequence") {
    auto sequence = std::make_unique<Sequence>();
    for (const auto& part : json.at("decoders")) sequence->parts.push_back(make(part, depth + 1));
    return sequence;
  }
  if (kind == "ByteLevel") return simple(join_bytes);
  if (kind == "ByteFallback") return simple(fall_back_from_bytes);
  if (kind == "Fuse") return simple([](std::vector<std::string>& tokens) { tokens = {base::join(tokens, "")}; });
  if (kind == "Metaspace") return make_metaspace(json);
  if (kind == "WordPiece") return make_wordpiece(json);
  if (kind == "BPEDecoder") return make_bpe(json);
  if (kind == "CTC") return make_ctc(json);
  if (kind == "Replace") {
    return simple([pattern = pattern_of(json), with = json.at("content").get<std::string>()](std::vector<std::string>& tokens) {
      for (auto& token : tokens) token = replace_all(pattern, token, with);
    });
  }
  if (kind == "Strip") {
    const auto content = json.at("content").get<std::string>();
    if (content.empty()) throw base::DataError("its Strip decoder has no content");
    return simple(
        [content, start = json.at("start").get<int64_t>(), stop = json.at("stop").get<int64_t>()](std::vector<std::string>& tokens) {
          for (auto& token : tokens) token = strip_token(token, content, start, stop);
        });
  }
  refuse_kind("decoder", kind);
}

}  // namespace

std::unique_ptr<Decoder> make_decoder(const nlohmann::json& json) { return make(json, 0); }

}  // namespace ingot::data
