// The page of `ingot data inspect`: what a dataset holds, or what a run is fed with.
#pragma once

#include <string>
#include <string_view>

#include "data/statistics/inspection.h"
#include "data/tokenizer.h"

namespace ingot::report {

/// `tokenizer` may be null: ids then stand for text. `written`: when, as text. The numbers lie in it as JSON, too (`#numbers`).
std::string make_data_page(const data::Inspection& inspection, const data::Tokenizer* tokenizer, std::string_view written);

}  // namespace ingot::report
