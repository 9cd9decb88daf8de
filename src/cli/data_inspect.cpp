#include "cli/data_inspect.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/text.h"
#include "data/statistics/inspection.h"
#include "report/data/page.h"
#include "report/page/document.h"
#ifdef INGOT_COMPUTES
#include "train/config.h"
#include "train/phases.h"
#endif

namespace ingot::cli {
namespace {

constexpr int64_t kSamples = 8;

struct Inspected {
  std::unique_ptr<data::Tokenizer> tokenizer;  // null: none is known
  data::Inspection inspection;
};

data::InspectionOptions options_of(const data::InspectCommand& command, int64_t vocab_size) {
  data::InspectionOptions options;
  options.samples = command.samples.value_or(kSamples);
  options.statistics.vocab_size = vocab_size;
  return options;
}

Inspected inspected_dataset(const data::InspectCommand& command) {
  Inspected out{command.tokenizer.empty() ? nullptr : data::load_tokenizer(command.tokenizer), {}};
  out.inspection =
      data::inspect_dataset(command.path, out.tokenizer.get(), options_of(command, out.tokenizer ? out.tokenizer->vocab_size() : 0));
  return out;
}

#ifdef INGOT_COMPUTES
Inspected inspected_run(const data::InspectCommand& command) {
  const auto config = train::read_config(command.config, command.set);
  train::check(config);
  std::vector<data::RunPhase> phases;
  for (const auto& phase : train::lay_out_phases_over_data(config))
    phases.push_back({phase.name,
                      phase.data,
                      {.vocab_size = config.model.vocab_size, .pad_id = static_cast<int32_t>(std::max<int64_t>(0, config.model.pad_id))},
                      phase.samples_before(phase.steps)});
  const auto& tokenizer = command.tokenizer.empty() ? config.data.tokenizer : command.tokenizer;
  Inspected out{tokenizer.empty() ? nullptr : data::load_tokenizer(tokenizer), {}};
  out.inspection = data::inspect_run(command.config, phases, out.tokenizer.get(), options_of(command, config.model.vocab_size));
  return out;
}
#endif

Inspected inspected(const data::InspectCommand& command) {
#ifdef INGOT_COMPUTES
  if (!command.config.empty()) return inspected_run(command);
#endif
  return inspected_dataset(command);
}

}  // namespace

int inspect_as_page(const data::InspectCommand& command) {
  const auto [tokenizer, inspection] = inspected(command);
  if (!command.output.empty()) {
    const auto page = report::make_data_page(inspection, tokenizer.get(), report::local_time());
    base::write_file_atomically(command.output, page);
    base::log_info("wrote {} ({})", command.output, base::format_bytes(static_cast<int64_t>(page.size())));
  }
  if (command.json) std::cout << data::numbers_of(inspection).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
  const auto& vocabulary = inspection.statistics.vocabulary;
  return (vocabulary.size > 0 && vocabulary.outside > 0) || !inspection.remarks.empty() ? 3 : 0;
}

}  // namespace ingot::cli
