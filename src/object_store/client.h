// A bucket of an S3-compatible object store. Every function may be called from any thread and blocks until the work is done; one
// Client keeps its connections open for all of them and must outlive what is built on it.
//
// Each request is signed (Signature Version 4), carries a digest that the store checks, and is tried again with growing, random
// pauses when the store is overloaded (429, 503 SlowDown), fails (5xx), stalls, closes the connection or answers nonsense, until
// `attempts` or `deadline_s` is used up. What trying again cannot change is an ObjectStoreError at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "object_store/answers.h"
#include "object_store/credentials.h"
#include "object_store/error.h"
#include "object_store/location.h"

namespace ingot::object_store {

/// What a store is asked to check of a body. sha256 (x-amz-checksum-sha256) costs nothing besides the signature and is kept with
/// the object; md5 (Content-MD5) is what old or simple stores know.
enum class Checksum { sha256, md5, none };

struct ClientOptions {
  std::string bucket;
  AccountSettings account;
  /// Asked when keys are about to expire, or a session token has, so that a long run can go on with new ones: those of a service, or what
  /// another program has put into the files. One thread at a time.
  std::function<Credentials()> renew;
  double renew_before_s = 300;  // keys that say when they expire are renewed so long before
  double renew_wait_s = 2;      // how long it is asked again while it gives the expired token, or fails
  Addressing addressing = Addressing::automatic;
  Checksum checksum = Checksum::sha256;
  bool sign_payload = true;  // false saves the digest; only honoured over https and without sha256 checksums
  int connections = 16;      // at the same time
  int attempts = 8;          // of each request
  double deadline_s = 300;   // of each request with all its attempts
  double connect_s = 10;
  double stall_s = 20;                               // less than 1 KiB/s for so long ends an attempt; whole seconds
  double first_pause_s = 0.2, longest_pause_s = 20;  // between attempts: uniform in [0, min(longest, first * 2^n)]
  int64_t range_bytes = int64_t{8} << 20;            // of each request of a large read
};

struct Counters {
  int64_t requests = 0;  // with retries
  int64_t retries = 0;
  int64_t connections_opened = 0;
  int64_t sent_bytes = 0, received_bytes = 0;  // of object contents
};

struct PutOptions {
  bool only_if_absent = false;  // If-None-Match: *; an existing object is Failure::already_exists
  std::string only_if_etag{};   // If-Match; another object is Failure::changed, none Failure::no_such_key
  double deadline_s = 0;        // shorter than the client's
};

struct Upload {
  std::string key, id;
  std::string mark;  // of this upload alone; kept with the object
};

struct Listing {
  std::vector<ObjectInfo> objects;   // sorted by key, as the store gives them
  std::vector<std::string> folders;  // common prefixes up to the delimiter, which they end with
};

class Requests;

class Client {
 public:
  /// Throws base::ConfigError. Makes no connection yet.
  explicit Client(ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// At most 5 GiB. Returns the ETag. After a lost answer a conditional put recognises its own object.
  std::string put(const std::string& key, std::span<const std::byte> content, const PutOptions& options = {}) const;

  /// Throws Failure::no_such_key.
  ObjectInfo head(const std::string& key) const;
  std::optional<ObjectInfo> find(const std::string& key) const;

  /// Reads exactly destination.size() bytes from `offset` on with one request. With an ETag, an object that was replaced
  /// meanwhile is Failure::changed. The destination's content is undefined after an exception.
  void get_range(const std::string& key, int64_t offset, std::span<std::byte> destination, const std::string& etag = "",
                 std::stop_token stop = {}) const;
  /// The same with parallel requests of `range_bytes`, on `threads` threads of which the caller's is one (0: one per connection).
  void read(const std::string& key, int64_t offset, std::span<std::byte> destination, const std::string& etag = "", int threads = 0) const;
  /// A whole object of at most `limit_bytes`.
  std::string get(const std::string& key, int64_t limit_bytes = int64_t{1} << 30) const;

  /// Everything that begins with `prefix`; what lies deeper than a `delimiter` behind it shows only as a folder.
  Listing list(const std::string& prefix, const std::string& delimiter = "") const;

  /// An object that is not there is no error.
  void remove(const std::string& key) const;
  /// If it has this ETag still, as far as the store knows conditional removals. One try, with a short deadline.
  void remove_if(const std::string& key, const std::string& etag, double deadline_s) const;
  /// By requests of up to 1000 keys. An empty list does nothing.
  void remove(const std::vector<std::string>& keys) const;
  /// Everything that begins with `prefix`, which must not be empty; a folder's ends with a slash. Returns the number of objects.
  int64_t remove_prefix(const std::string& prefix) const;

  // Multipart uploads one by one; MultipartUpload does it in parallel. Parts have 5 MiB or more, but for the last one.
  Upload create_upload(const std::string& key) const;
  Part upload_part(const Upload& upload, int number, std::span<const std::byte> content, std::stop_token stop = {}) const;
  /// Parts with rising numbers. Returns the ETag. Recognises that an attempt whose answer was lost did complete it.
  std::string complete_upload(const Upload& upload, const std::vector<Part>& parts) const;
  void abort_upload(const Upload& upload) const;  // one that is gone is no error
  /// Uploads that were neither completed nor aborted: what a killed writer leaves behind, and what is paid for.
  std::vector<PendingUpload> pending_uploads(const std::string& prefix) const;

  const ClientOptions& options() const;
  Counters counters() const;

 private:
  std::string mark_of(const std::string& key) const;
  std::unique_ptr<Requests> requests_;
};

}  // namespace ingot::object_store
