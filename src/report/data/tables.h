// The tables of the page about data.
#pragma once

#include <string>

#include "data/statistics/inspection.h"
#include "data/tokenizer.h"

namespace ingot::report {

/// `<div class="cards">` each; "" when there is nothing to say. `tokenizer` may be null.
std::string dataset_table(const data::Inspection& inspection);
std::string phase_table(const data::PackedPhase& phase);
std::string length_table(const data::Inspection& inspection);
std::string frequent_tokens(const data::VocabularyUse& vocabulary, const data::Tokenizer* tokenizer);
std::string never_used_tokens(const data::VocabularyUse& vocabulary, const data::Tokenizer* tokenizer);
std::string repeated_documents(const data::Inspection& inspection, const data::Tokenizer* tokenizer);

/// "12.3 %".
std::string percent(double part, double whole);

}  // namespace ingot::report
