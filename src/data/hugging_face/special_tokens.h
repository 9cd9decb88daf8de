// Which tokens begin and end a text, pad and stand for what is unknown, as a tokenizer_config.json says or their usual names.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "data/tokenizer.h"

namespace ingot::data {

/// `config` is an object, empty for none; `id_of` gives -1 for what is no token.
SpecialTokens special_tokens_of(const nlohmann::json& config, const std::function<int32_t(std::string_view)>& id_of);

}  // namespace ingot::data
