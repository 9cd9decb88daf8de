// Of equal documents, paragraphs or lines the first one stays.
#include <xxhash.h>

#include <algorithm>

#include "data/process/steps.h"
#include "data/process/text_parts.h"

namespace ingot::data::process {
namespace {

class Duplicates : public Search {
 public:
  explicit Duplicates(const StepConfig& config)
      : parts_of_(config.of == "paragraphs" ? &paragraphs_with_ends
                  : config.of == "lines"    ? &lines_with_ends
                                            : nullptr),
        what_(config.of),
        least_(config.least_characters) {}

  void keys_of(const Document& document, int64_t number, std::vector<Record>& keys) const override {
    const auto add = [&](std::string_view text, int32_t part) {
      const auto hash = XXH3_128bits(text.data(), text.size());
      keys.push_back({{hash.low64, hash.high64}, {number, part}});
    };
    if (!parts_of_) return add(document.text, 0);
    int32_t part = 0;
    for (const auto piece : parts_of_(document.text)) {
      const auto text = trimmed(piece);
      if (!text.empty() && characters_of(text) >= least_) add(text, part);
      ++part;
    }
  }

  void find(RecordSorter& keys, const std::function<void(Removal)>& remove) const override {
    RecordSorter::Reader reader(keys);
    Record first, next;
    if (!reader.next(first)) return;
    while (reader.next(next)) {
      if (next.same_key(first)) remove({next.place, first.place});
      else first = next;
    }
  }

  bool take_out(Document& document, std::span<const Removal> removals, Tally& tally) const override {
    const auto remark = fmt::format("first in document {} of those that came to this step", removals.front().kept.document + 1);
    if (!parts_of_) {
      tally.remove(document, "duplicate", remark);
      return false;
    }
    std::string kept;
    int32_t part = 0;
    auto next = removals.begin();
    for (const auto piece : parts_of_(document.text)) {
      if (next != removals.end() && next->place.part == part) ++next;
      else kept += piece;
      ++part;
    }
    if (trimmed(kept).empty()) {
      tally.remove(document, "all " + what_ + " are duplicates", remark);
      return false;
    }
    tally.count("duplicate " + what_, static_cast<int64_t>(removals.size()));
    document.text = std::move(kept);
    return true;
  }

 private:
  std::vector<std::string_view> (*parts_of_)(std::string_view);
  std::string what_;
  int64_t least_;
};

}  // namespace

std::unique_ptr<Search> make_duplicates(const StepConfig& config) { return std::make_unique<Duplicates>(config); }

}  // namespace ingot::data::process
