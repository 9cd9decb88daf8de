#include "data/tokenizer_files.h"

#include "data/hugging_face/tokenizer.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/tiktoken_tokenizer.h"

namespace ingot::data {
namespace {

constexpr int64_t kLargestFileBytes = int64_t{512} << 20;
constexpr const char *kJson = "tokenizer.json", *kModel = "tokenizer.model", *kRanks = "tokenizer.tiktoken",
                     *kRankSettings = "tiktoken.json", *kConfig = "tokenizer_config.json";

}  // namespace

TokenizerFiles files_of(const Tokenizer& tokenizer) {
  TokenizerFiles files;
  const bool is_json = dynamic_cast<const HuggingFaceTokenizer*>(&tokenizer) != nullptr;
  const auto* tiktoken = dynamic_cast<const TiktokenTokenizer*>(&tokenizer);
  files[tiktoken ? kRanks : is_json ? kJson : kModel] = base::read_file(tokenizer.path(), kLargestFileBytes);
  if (tiktoken) files[kRankSettings] = tiktoken->settings_json();  // the name that said it is gone
  for (const char* name : {kConfig, "special_tokens_map.json", "chat_template.jinja", "generation_config.json"})
    if (const auto beside = tokenizer.path().parent_path() / name; fs::exists(beside))
      files[name] = base::read_file(beside, kLargestFileBytes);
  return files;
}

std::unique_ptr<Tokenizer> load_tokenizer(const TokenizerFiles& files, const fs::path& origin) {
  const auto text_of = [&](const char* name) {
    const auto found = files.find(name);
    return found == files.end() ? std::string() : found->second;
  };
  if (files.contains(kJson)) return std::make_unique<HuggingFaceTokenizer>(text_of(kJson), text_of(kConfig), origin / kJson);
  if (files.contains(kModel)) return std::make_unique<SentencePieceTokenizer>(text_of(kModel), origin / kModel, text_of(kConfig));
  if (files.contains(kRanks))
    return std::make_unique<TiktokenTokenizer>(text_of(kRanks), TiktokenSettings{text_of(kRankSettings), text_of(kConfig)},
                                               origin / kRanks);
  return nullptr;
}

}  // namespace ingot::data
