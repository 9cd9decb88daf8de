// What an error answer of a store means: whether to try again, which kind of failure it is, and what its reader should do.
#pragma once

#include <string>
#include <string_view>

#include "object_store/error.h"

namespace ingot::object_store {

/// A fault that passes: overload, a failing server, or bytes that were damaged on the way.
bool is_passing(int status, std::string_view code);

/// `code` is the server's; without one (HEAD has no body) the status decides.
Failure failure_of(int status, std::string_view code);

/// "; ..." to be appended to a message.
std::string advice_for(Failure failure);

}  // namespace ingot::object_store
