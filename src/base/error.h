// The exceptions of ingot. Each names the layer that failed; its message says what happened, to which tensor, file or
// rank, and what to do next. main() maps them to exit status: UsageError and ConfigError 2, VerificationError 3, others 1.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace ingot::base {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

#define INGOT_ERROR_TYPE(Name, Base)                                                                                              \
  class Name : public Base {                                                                                                      \
   public:                                                                                                                        \
    template <class... Args>                                                                                                      \
    explicit Name(fmt::format_string<Args...> format, Args&&... args) : Base(fmt::format(format, std::forward<Args>(args)...)) {} \
  }

INGOT_ERROR_TYPE(UsageError, Error);         // wrong flags of a verb
INGOT_ERROR_TYPE(ConfigError, Error);        // a setting that is unknown, of the wrong type or impossible
INGOT_ERROR_TYPE(OutOfMemoryError, Error);   // a device or the host has no memory left
INGOT_ERROR_TYPE(FileError, Error);          // the operating system refused a file operation
INGOT_ERROR_TYPE(DataError, Error);          // tokenizers, datasets, text files
INGOT_ERROR_TYPE(CheckpointError, Error);    // checkpoints and safetensors
INGOT_ERROR_TYPE(ModelError, Error);         // a model that cannot be built or filled
INGOT_ERROR_TYPE(ProfileError, Error);       // machine profiles
INGOT_ERROR_TYPE(NumericError, Error);       // NaN or Inf where none may be
INGOT_ERROR_TYPE(ReplicaError, Error);       // ranks that should hold the same weights do not
INGOT_ERROR_TYPE(CommError, Error);          // collectives and rendezvous
INGOT_ERROR_TYPE(VerificationError, Error);  // a comparison or threshold was missed

#undef INGOT_ERROR_TYPE

/// What it says, without the stack trace that libtorch appends, which helps nobody at the command line.
inline std::string_view message_of(const std::exception& failure) {
  const std::string_view message = failure.what();
  return message.substr(0, message.find("\nException raised from"));
}

}  // namespace ingot::base
