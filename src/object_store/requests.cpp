#include "object_store/requests.h"

#include <algorithm>
#include <condition_variable>
#include <ctime>

#include "base/log.h"
#include "object_store/advice.h"
#include "object_store/random_pause.h"

namespace ingot::object_store {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kRenewalPause_s = 0.1;

Clock::duration seconds(double value) { return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value)); }
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// False when it was cancelled.
bool sleep_for(double pause_s, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, seconds(pause_s), [] { return false; });
  return !stop.stop_requested();
}

std::string http_words(const HttpAnswer& answer, const ErrorAnswer& error) {
  std::string words = fmt::format("HTTP {}", answer.status);
  if (!error.code.empty()) words += " " + error.code;
  if (!error.message.empty()) words += ": " + error.message;
  if (error.code.empty() && !answer.body.empty()) words += ": " + printable(answer.body);
  if (const auto& id = answer.header("x-amz-request-id"); !id.empty()) words += " (request " + printable(id) + ")";
  return words;
}

// What else the answer tells about the mistake.
std::string evidence(Failure failure, const HttpAnswer& answer, const ErrorAnswer& error) {
  if (failure == Failure::clock_skew) {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    char text[64];
    std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
    return fmt::format("; the store's clock says {}, this machine's {}", printable(answer.header("date")), text);
  }
  const std::string region = answer.header("x-amz-bucket-region").empty() ? error.region : printable(answer.header("x-amz-bucket-region"));
  return failure == Failure::wrong_region && !region.empty() ? "; the bucket is in " + region : "";
}

}  // namespace

Requests::Requests(ClientOptions options)
    : options_(std::move(options)),
      endpoint_(resolve_endpoint(options_.account.endpoint_url, options_.account.region, options_.bucket, options_.addressing)),
      http_({options_.connections, options_.connect_s, options_.account.ca_bundle}) {
  if (options_.account.region.empty()) options_.account.region = "us-east-1";  // what stores that know no regions expect
  if (options_.account.credentials.access_key_id.empty() || options_.account.credentials.secret_access_key.empty())
    throw base::ConfigError("no keys were given for bucket '{}'", options_.bucket);
  options_.attempts = std::max(1, options_.attempts);
}

std::string Requests::name_of(std::string_view key) const { return Location{options_.bucket, printable(key)}.to_string(); }

Counters Requests::counters() const { return {requests_, retries_, http_.connections_opened(), sent_bytes_, received_bytes_}; }

Credentials Requests::present_credentials() const {
  const std::lock_guard guard(mutex_);
  return options_.account.credentials;
}

// Those that are about to expire are renewed first, by one thread; the others go on with them as long as they are valid.
Credentials Requests::credentials() {
  const auto present = present_credentials();
  if (is_due(present)) renew(present);
  return present_credentials();
}

bool Requests::is_due(const Credentials& present) {
  if (present.expires_s == 0 || !options_.renew) return false;
  const double left_s = static_cast<double>(present.expires_s - std::time(nullptr));
  if (left_s > options_.renew_before_s) return false;
  const std::lock_guard guard(mutex_);
  if (renewing_) return left_s <= 0;  // then it is waited for
  if (Clock::now() < next_renewal_) return false;
  next_renewal_ = Clock::now() + seconds(options_.renew_before_s / 10);
  return true;
}

// True when there are other credentials than the old ones: ours, or those that another thread has fetched meanwhile.
bool Requests::renew(const Credentials& old) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !renewing_; });  // each service that is asked has its deadline
  auto& present = options_.account.credentials;
  const auto is_same = [&](const Credentials& other) {
    return other.access_key_id == old.access_key_id && other.session_token == old.session_token;
  };
  if (!is_same(present)) return true;
  if (!options_.renew) return false;
  renewing_ = true;
  lock.unlock();
  std::optional<Credentials> fresh;
  try {
    fresh = options_.renew();
  } catch (const base::Error& failure) {
    const auto said = fmt::format("new keys for the object store could not be had: {}", failure.what());
    if (old.expires_s > 0) base::log_warning("{}; those of now go on until they expire", said);
    else base::log_debug("{}", said);
  }
  lock.lock();
  renewing_ = false;
  changed_.notify_all();
  if (!fresh) return false;
  present = std::move(*fresh);
  return !is_same(present);
}

// Whoever replaces a token may be a moment late, or half way through writing the file: what was read is no verdict at once.
bool Requests::wait_for_renewal(const Credentials& expired, Clock::time_point until, const std::stop_token& stop) {
  while (!renew(expired)) {
    if (!options_.renew || Clock::now() >= until) return false;
    if (!sleep_for(kRenewalPause_s, stop)) return false;
  }
  return true;
}

HttpAnswer Requests::attempt(const Request& request, const std::string& payload_sha256, Clock::time_point deadline,
                             const Credentials& credentials) {
  const std::string path = endpoint_.path_of(request.key), query = encode_query(request.query);
  RequestToSign to_sign{request.method, endpoint_.host, path, request.query, request.headers, payload_sha256};
  HttpRequest http{request.method, endpoint_.scheme + "://" + endpoint_.host + path + (query.empty() ? "" : "?" + query), request.headers};
  for (auto& header : sign(to_sign, credentials, options_.account.region, std::chrono::system_clock::now()))
    http.headers.push_back(std::move(header));
  http.body = request.body;
  http.destination = request.destination;
  http.wanted = request.wanted;
  http.body_limit_bytes = request.body_limit_bytes;
  http.deadline = deadline;
  http.stall_s = request.patient ? 0 : options_.stall_s;
  http.stop = request.stop;
  ++requests_;
  HttpAnswer answer = http_.perform(http);
  received_bytes_ += answer.received_bytes;
  return answer;
}

Requests::Verdict Requests::judge(const Request& request, const HttpAnswer& answer) const {
  if (answer.cancelled) return {Next::stop, Failure::cancelled, "it was cancelled"};
  if (!answer.failure.empty() && answer.status < 300) {
    if (answer.timed_out) return {Next::stop, Failure::timed_out, answer.failure};
    if (answer.hopeless)
      return {Next::stop, Failure::refused, answer.failure + "; if the store has a certificate of its own, name it in AWS_CA_BUNDLE"};
    return {Next::again, Failure::unavailable, answer.failure};
  }
  const ErrorAnswer error = parse_error(answer.body);
  if (answer.status < 300 && error.code.empty()) {  // S3 may also report an error after it has begun to answer 200
    try {
      if (request.check) request.check(answer);
      return {};
    } catch (const BrokenAnswer& broken) {
      return {Next::again, Failure::broken_answer, fmt::format("HTTP {}: {}", answer.status, broken.what())};
    }
  }
  if (answer.status == 404 && request.may_be_absent && error.code != "NoSuchBucket") return {};
  const std::string what = http_words(answer, error);
  if (is_passing(answer.status, error.code)) return {Next::again, Failure::unavailable, what};
  Failure failure = failure_of(answer.status, error.code);
  if (failure == Failure::already_exists) failure = request.unmet;
  return {failure == Failure::expired_credentials ? Next::renew : Next::stop, failure, what + evidence(failure, answer, error)};
}

Outcome Requests::perform(const Request& request) {
  const auto start = Clock::now(),
             deadline = start + seconds(request.deadline_s > 0 ? std::min(request.deadline_s, options_.deadline_s) : options_.deadline_s);
  const std::string name = name_of(request.key.empty() ? request.prefix : request.key);
  Request prepared = request;
  Outcome outcome;
  const bool sha256_checksum = request.digest && options_.checksum == Checksum::sha256;
  const bool sign_payload = options_.sign_payload || sha256_checksum || endpoint_.scheme != "https" || !request.digest;
  const std::string digest = sign_payload ? sha256(request.body) : "";
  if (sha256_checksum) {
    outcome.sha256 = base64(digest);
    prepared.headers.emplace_back("x-amz-checksum-sha256", outcome.sha256);
  }
  if (request.md5 || (request.digest && options_.checksum == Checksum::md5))
    prepared.headers.emplace_back("content-md5", base64(md5(request.body)));
  const std::string payload = sign_payload ? hex(digest) : kUnsignedPayload;

  const auto fail = [&](const Verdict& verdict, const std::string& tries) {
    const std::string message = fmt::format("cannot {} {} at {}://{}: {}{}{}", request.verb, name, endpoint_.scheme, endpoint_.host,
                                            verdict.what, tries, advice_for(verdict.failure));
    const bool uncertain = outcome.maybe_done_before && (verdict.failure == Failure::already_exists ||
                                                         verdict.failure == Failure::changed || verdict.failure == Failure::no_such_upload);
    if (uncertain) throw UncertainError(verdict.failure, message);
    throw ObjectStoreError(verdict.failure, message);
  };
  Verdict earlier;
  for (int attempts = 1;; ++attempts) {
    const Credentials used = credentials();
    outcome.answer = attempt(prepared, payload, deadline, used);
    const Verdict verdict = judge(prepared, outcome.answer);
    if (verdict.next == Next::done) break;
    const std::string tries = fmt::format(" (gave up after {} attempts in {:.1f} s)", attempts, seconds_since(start));
    if (verdict.failure == Failure::timed_out &&
        !earlier.what.empty())  // what went wrong before says more than how the last attempt was cut off
      fail({Next::stop, earlier.failure, earlier.what + "; the last attempt ran into the deadline"}, tries);
    if (verdict.next == Next::stop) fail(verdict, verdict.failure == Failure::timed_out ? tries : "");
    if (verdict.next == Next::renew &&
        !wait_for_renewal(used, std::min(deadline, Clock::now() + seconds(options_.renew_wait_s)), request.stop))
      fail(verdict, "");
    outcome.maybe_done_before = outcome.maybe_done_before || (outcome.answer.maybe_carried_out && verdict.next == Next::again);
    double pause_s = verdict.next == Next::renew ? 0 : random_pause_s(attempts, options_.first_pause_s, options_.longest_pause_s);
    if (const int64_t asked_s = parse_count(outcome.answer.header("retry-after")); asked_s > 0)
      pause_s = std::max(pause_s, std::min(static_cast<double>(asked_s), options_.longest_pause_s));
    if (attempts >= options_.attempts || Clock::now() + seconds(pause_s) >= deadline) fail(verdict, tries);
    base::log_debug("{} {}: attempt {} failed, the next in {:.2f} s: {}", request.verb, name, attempts, pause_s, verdict.what);
    ++retries_;
    earlier = verdict;
    if (!sleep_for(pause_s, request.stop)) fail({Next::stop, Failure::cancelled, "it was cancelled"}, "");
  }
  if (request.digest) sent_bytes_ += static_cast<int64_t>(request.body.size());
  return outcome;
}

}  // namespace ingot::object_store
