// What went wrong with an object store. The message says which object, which HTTP status, the server's own code and words, and
// what to do; `failure()` is for code that must tell cases apart.
#pragma once

#include <string>

#include "base/error.h"

namespace ingot::object_store {

enum class Failure {
  access_denied,
  no_such_key,
  no_such_bucket,
  no_such_upload,
  invalid_access_key,
  signature_mismatch,
  clock_skew,
  expired_credentials,
  wrong_region,
  already_exists,  // a put that was only to create
  changed,         // the object was replaced while it was read
  refused,         // any other answer that trying again cannot change
  unavailable,     // still overloaded, failing or unreachable after the last attempt
  timed_out,       // the deadline passed
  broken_answer,   // still not an answer of an object store after the last attempt
  cancelled,
};

/// "access_denied" and so on.
const char* name_of(Failure failure);

class ObjectStoreError : public base::Error {
 public:
  ObjectStoreError(Failure failure, const std::string& message) : base::Error(message), failure_(failure) {}
  Failure failure() const { return failure_; }

 private:
  Failure failure_;
};

}  // namespace ingot::object_store
