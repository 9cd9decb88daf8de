// Documents by the language of most of their text, as CLD2 (Compact Language Detector 2, of Chromium) finds it: 83 languages, by runs of
// four letters. Short texts and mixtures are often unknown to it.
#include <cld2/public/compact_lang_det.h>
#include <cld2/public/encodings.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "data/process/steps.h"

namespace ingot::data::process {
namespace {

class OfLanguage : public Filter {
 public:
  explicit OfLanguage(const StepConfig& config) : share_(config.share) {
    if (config.languages.empty()) throw base::ConfigError("{}: languages is empty: name some, as \"en\"", config.name);
    for (const auto& code : config.languages) {
      languages_.push_back(CLD2::GetLanguageFromName(code.c_str()));  // also of older codes and of names
      if (languages_.back() == CLD2::UNKNOWN_LANGUAGE)
        throw base::ConfigError("{}: no language has the code \"{}\"; codes are those of ISO 639, as \"en\", \"de\" or \"zh\"", config.name,
                                code);
    }
  }

  bool apply(Document& document, Tally& tally) const override {
    CLD2::Language languages[3];
    int percents[3], text_bytes = 0;
    bool is_reliable = false;
    const int bytes = static_cast<int>(std::min<size_t>(document.text.size(), 1 << 30));
    CLD2::DetectLanguageSummary(document.text.data(), bytes, /*is_plain_text=*/true, languages, percents, &text_bytes, &is_reliable);
    const std::string code = languages[0] == CLD2::UNKNOWN_LANGUAGE ? "unknown" : CLD2::LanguageCode(languages[0]);
    const bool is_wanted = std::find(languages_.begin(), languages_.end(), languages[0]) != languages_.end();
    if (is_wanted && percents[0] >= 100 * share_) return true;
    tally.remove(document, is_wanted ? code + " is too little of it" : code, fmt::format("{} %", percents[0]));
    return false;
  }

 private:
  std::vector<CLD2::Language> languages_;
  double share_;
};

}  // namespace

std::unique_ptr<Filter> make_language(const StepConfig& config) { return std::make_unique<OfLanguage>(config); }

}  // namespace ingot::data::process
