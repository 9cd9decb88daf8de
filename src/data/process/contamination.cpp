// Documents that contain what a model is evaluated with: a run of words of an evaluation's texts, 13 of them as for GPT-3 (arXiv
// 2005.14165, appendix C). A text of fewer words, but at least 8, counts whole.
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/process/steps.h"
#include "data/process/text_parts.h"
#include "data/text_reader.h"

namespace ingot::data::process {
namespace {

constexpr size_t kLeastWords = 8;

// Every string of a member, and of what is inside of it.
void add_strings(const nlohmann::json& value, std::vector<std::string>& texts) {
  if (value.is_string()) texts.push_back(value.get<std::string>());
  else if (value.is_structured())
    for (const auto& inner : value) add_strings(inner, texts);
}

class Contamination : public Filter {
 public:
  explicit Contamination(const StepConfig& config)
      : words_(config.words > 0 ? static_cast<size_t>(config.words) : 13), overlap_(config.overlap) {
    if (config.files.empty()) throw base::ConfigError("{}: files is empty: name the texts of evaluations", config.name);
    int64_t texts = 0, short_ones = 0;
    for (const auto& file : config.files) {
      files_.push_back(base::fs::path(file).filename().string());
      for (const auto& text : texts_of(file, config.field)) {
        ++texts;
        short_ones += !add(text, static_cast<uint32_t>(files_.size() - 1));
      }
    }
    if (texts == 0) throw base::DataError("{}: there is no text in {}", config.name, config.files.front());
    if (short_ones > 0)
      base::log_info("{}: {} of {} texts have fewer than {} words and are not looked for", config.name, short_ones, texts, kLeastWords);
  }

  bool apply(Document& document, Tally& tally) const override {
    const auto words = word_hashes(document.text);
    std::vector<bool> is_inside(words.size());  // of such a run
    int64_t inside = 0;
    uint32_t file = 0;
    for (const auto& [length, known] : by_length_)
      for (size_t i = 0; i + length <= words.size() && (inside == 0 || overlap_ > 0); ++i) {
        const auto found = known.find(run_hash(words, i, length));
        if (found == known.end()) continue;
        if (inside == 0) file = found->second;
        for (size_t k = i; k < i + length; ++k) inside += !is_inside[k], is_inside[k] = true;
      }
    if (inside == 0 || static_cast<double>(inside) < overlap_ * static_cast<double>(words.size())) return true;
    tally.remove(document, "text of " + files_[file]);
    return false;
  }

 private:
  static std::vector<std::string> texts_of(const std::string& file, const std::string& fields) {
    TextOptions options;
    options.whole_lines = true;
    TextReader reader({file}, options);
    std::vector<std::string> texts;
    std::string open;
    for (TextBlock block; reader.next(block);)
      for (auto& part : parse_block(block, options).parts) {
        if (!block.jsonl) {
          open += part.text;
          if (part.ends_document) texts.push_back(std::exchange(open, ""));
          continue;
        }
        const bool is_deep = is_nested_too_deeply(part.text);
        const auto line = is_deep ? nlohmann::json() : nlohmann::json::parse(part.text, nullptr, false);
        if (!line.is_object()) throw base::DataError("{}: the line is no JSON object", block.where(part.line));
        for (const auto& field : base::split(fields, ','))
          if (const auto found = line.find(std::string(trimmed(field))); found != line.end()) add_strings(*found, texts);
      }
    if (!open.empty()) texts.push_back(open);
    return texts;
  }

  bool add(const std::string& text, uint32_t file) {
    const auto words = word_hashes(text);
    if (words.size() < std::min(words_, kLeastWords)) return false;
    const size_t length = std::min(words_, words.size());
    auto& known = by_length_[length];
    for (size_t i = 0; i + length <= words.size(); ++i) known.emplace(run_hash(words, i, length), file);
    return true;
  }

  size_t words_;
  double overlap_;
  std::vector<std::string> files_;
  std::map<size_t, std::unordered_map<uint64_t, uint32_t>> by_length_;
};

}  // namespace

std::unique_ptr<Filter> make_contamination(const StepConfig& config) { return std::make_unique<Contamination>(config); }

}  // namespace ingot::data::process
