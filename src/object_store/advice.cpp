#include "object_store/advice.h"

#include <algorithm>
#include <array>

namespace ingot::object_store {
namespace {

struct KnownCode {
  std::string_view code;
  Failure failure;
};
constexpr KnownCode kCodes[] = {
    {"AccessDenied", Failure::access_denied},
    {"AllAccessDisabled", Failure::access_denied},
    {"AccountProblem", Failure::access_denied},
    {"NoSuchKey", Failure::no_such_key},
    {"NoSuchBucket", Failure::no_such_bucket},
    {"NoSuchUpload", Failure::no_such_upload},
    {"InvalidAccessKeyId", Failure::invalid_access_key},
    {"SignatureDoesNotMatch", Failure::signature_mismatch},
    {"RequestTimeTooSkewed", Failure::clock_skew},
    {"ExpiredToken", Failure::expired_credentials},
    {"InvalidToken", Failure::expired_credentials},
    {"TokenRefreshRequired", Failure::expired_credentials},
    {"AuthorizationHeaderMalformed", Failure::wrong_region},
    {"IllegalLocationConstraintException", Failure::wrong_region},
    {"PermanentRedirect", Failure::wrong_region},
    {"TemporaryRedirect", Failure::wrong_region},
    {"PreconditionFailed", Failure::already_exists},
};

// RequestTimeout is S3's 400 for a body that came too slowly; the digests are of bodies that were damaged on the way.
constexpr std::array<std::string_view, 16> kPassing = {"SlowDown",
                                                       "InternalError",
                                                       "ServiceUnavailable",
                                                       "RequestTimeout",
                                                       "BadDigest",
                                                       "XAmzContentSHA256Mismatch",
                                                       "XAmzContentChecksumMismatch",
                                                       "OperationAborted",
                                                       "IncompleteBody",
                                                       "ConditionalRequestConflict",
                                                       "Throttling",
                                                       "ThrottlingException",
                                                       "TooManyRequests",
                                                       "RequestLimitExceeded",
                                                       "BandwidthLimitExceeded",
                                                       "RequestThrottled"};

}  // namespace

bool is_passing(int status, std::string_view code) {
  if (std::find(kPassing.begin(), kPassing.end(), code) != kPassing.end()) return true;
  return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
}

Failure failure_of(int status, std::string_view code) {
  for (const KnownCode& known : kCodes)
    if (known.code == code) return known.failure;
  if (status == 403) return Failure::access_denied;
  if (status == 404) return Failure::no_such_key;
  if (status == 412) return Failure::already_exists;
  if (status == 301 || status == 302 || status == 307 || status == 308) return Failure::wrong_region;
  return Failure::refused;
}

std::string advice_for(Failure failure) {
  switch (failure) {
    case Failure::access_denied:
      return "; these keys may not do that: ask for the permission (s3:GetObject, PutObject, DeleteObject, ListBucket, "
             "ListBucketMultipartUploads, AbortMultipartUpload), "
             "or check the bucket's name; S3 also answers so for a missing object when listing is not allowed";
    case Failure::no_such_key: return "; check the path, or list what is there";
    case Failure::no_such_bucket: return "; check its name, or create it";
    case Failure::no_such_upload: return "; it was completed or aborted by another process or a lifecycle rule; write the object again";
    case Failure::invalid_access_key: return "; the store does not know this key id: check AWS_ACCESS_KEY_ID, AWS_PROFILE and the endpoint";
    case Failure::signature_mismatch:
      return "; check AWS_SECRET_ACCESS_KEY, the region, and that no proxy changes the request's host, path or headers";
    case Failure::clock_skew: return "; set this machine's clock (chronyd or ntpd), it differs from the store's by more than 15 minutes";
    case Failure::expired_credentials: return "; get a new session token and set it where the old one was";
    case Failure::wrong_region: return "; set AWS_REGION to the bucket's region, or correct AWS_ENDPOINT_URL";
    case Failure::already_exists: return "; another process wrote it first";
    case Failure::changed: return "; it was replaced while it was read: begin again";
    case Failure::refused: return "";
    case Failure::unavailable: return "; try again later, or with fewer connections";
    case Failure::timed_out: return "; check the network and the store, or allow more time";
    case Failure::broken_answer: return "; is the endpoint an S3-compatible store, and is no proxy in between?";
    case Failure::cancelled: return "";
  }
  return "";
}

const char* name_of(Failure failure) {
  constexpr const char* kNames[] = {"access_denied",      "no_such_key",        "no_such_bucket", "no_such_upload",
                                    "invalid_access_key", "signature_mismatch", "clock_skew",     "expired_credentials",
                                    "wrong_region",       "already_exists",     "changed",        "refused",
                                    "unavailable",        "timed_out",          "broken_answer",  "cancelled"};
  return kNames[static_cast<int>(failure)];
}

}  // namespace ingot::object_store
