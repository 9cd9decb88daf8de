#include "object_store/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace ingot::object_store {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kHeaderLimitBytes = 128 * 1024;
constexpr long kBufferBytes = 512 * 1024;
constexpr long kStallBytesPerS = 1024;

void initialise_curl() {
  static const CURLcode result = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (result != CURLE_OK) throw base::Error("libcurl cannot be initialised: " + std::string(curl_easy_strerror(result)));
}

// The library knows where Debian keeps certificates; a program that was carried to another system looks in its places too.
std::string system_certificates() {
  for (const char* file : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
                           "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem"}) {
    std::error_code ignored;
    if (std::filesystem::exists(file, ignored)) return file;
  }
  return {};
}

// libcurl counts whole milliseconds, and from its own start: it may end a request that much before the deadline.
constexpr std::chrono::milliseconds kTimerStep(2);

long remaining_ms(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return std::clamp<long>(left, 1, 1'000'000'000);
}

// What libcurl's callbacks work on during one request.
struct Transfer {
  const HttpRequest& request;
  HttpAnswer answer{};
  size_t sent_bytes = 0, header_bytes = 0;
  std::string refused;  // why this side ended the transfer
  bool headers_ended = false, body_begun = false, to_destination = false;

  size_t add_header(std::string_view line) {
    header_bytes += line.size();
    if (header_bytes > kHeaderLimitBytes) {
      refused = "the answer's headers are endless";
      return 0;
    }
    if (line.starts_with("HTTP/")) {  // of an interim answer, or of the real one after it
      answer.headers.clear();
      headers_ended = false;
      const size_t space = std::min(line.find(' '), line.size());
      const int64_t status = parse_count(line.substr(std::min(space + 1, line.size())).substr(0, 3));
      answer.status = static_cast<int>(std::max<int64_t>(status, 0));
    } else if (const size_t colon = line.find(':'); colon != std::string_view::npos) {
      std::string_view value = line.substr(colon + 1);
      while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
      while (!value.empty() && static_cast<unsigned char>(value.back()) <= 0x20) value.remove_suffix(1);
      answer.headers[lower_case(line.substr(0, colon))] = std::string(value);
    }
    headers_ended = headers_ended || line == "\r\n" || line == "\n";
    return line.size();
  }

  size_t add_body(std::string_view data) {
    if (!body_begun) to_destination = request.wanted && request.wanted(answer);
    body_begun = true;
    if (to_destination) {
      if (data.size() > request.destination.size() - static_cast<size_t>(answer.received_bytes)) {
        refused = fmt::format("more than the {} bytes that were asked for came", request.destination.size());
        return 0;
      }
      std::memcpy(request.destination.data() + answer.received_bytes, data.data(), data.size());
      answer.received_bytes += static_cast<int64_t>(data.size());
    } else {
      if (static_cast<int64_t>(answer.body.size() + data.size()) > request.body_limit_bytes) {
        refused = fmt::format("the answer has more than {} bytes", request.body_limit_bytes);
        return 0;
      }
      answer.body += data;
    }
    return data.size();
  }
};

size_t on_header(char* data, size_t size, size_t count, void* transfer) {
  return static_cast<Transfer*>(transfer)->add_header({data, size * count});
}

size_t on_body(char* data, size_t size, size_t count, void* transfer) {
  return static_cast<Transfer*>(transfer)->add_body({data, size * count});
}

size_t on_send(char* buffer, size_t size, size_t count, void* pointer) {
  auto* transfer = static_cast<Transfer*>(pointer);
  const auto rest = transfer->request.body.subspan(transfer->sent_bytes);
  const size_t part_bytes = std::min(rest.size(), size * count);
  if (part_bytes > 0) std::memcpy(buffer, rest.data(), part_bytes);
  transfer->sent_bytes += part_bytes;
  return part_bytes;
}

// A kept connection may turn out closed only after a part was sent; the library then begins again on a new one.
int on_rewind(void* pointer, curl_off_t offset, int origin) {
  auto* transfer = static_cast<Transfer*>(pointer);
  if (origin != SEEK_SET || offset < 0 || static_cast<size_t>(offset) > transfer->request.body.size()) return CURL_SEEKFUNC_FAIL;
  transfer->sent_bytes = static_cast<size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

int on_progress(void* transfer, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<Transfer*>(transfer)->request.stop.stop_requested() ? 1 : 0;
}

struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using HeaderList = std::unique_ptr<curl_slist, FreeList>;

HeaderList header_list(const Pairs& headers) {
  HeaderList list;
  for (const auto& [name, value] : headers) {
    // Some values were answers of a server before: a line break would add a header.
    if (std::any_of(value.begin(), value.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }))
      throw base::Error(fmt::format("the header {} would contain a control character: {}", name, printable(value)));
    // The library takes "name;" for a header without a value.
    const std::string line = value.empty() ? name + ";" : name + ": " + value;
    curl_slist* longer = curl_slist_append(list.get(), line.c_str());
    if (!longer) throw std::bad_alloc();
    list.release();
    list.reset(longer);
  }
  return list;
}

bool is_hopeless(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE || code == CURLE_SSL_CERTPROBLEM;
}

bool never_reached_server(CURLcode code) {
  return code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY || code == CURLE_COULDNT_CONNECT ||
         code == CURLE_SSL_CONNECT_ERROR || is_hopeless(code);
}

}  // namespace

const std::string& HttpAnswer::header(std::string_view name) const {
  static const std::string none;
  const auto found = headers.find(name);
  return found == headers.end() ? none : found->second;
}

class Http::Handle {
 public:
  Handle() : easy_(curl_easy_init()) {
    if (!easy_) throw base::Error("libcurl cannot make a connection; is memory exhausted?");
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { curl_easy_cleanup(easy_); }

  HttpAnswer perform(const HttpRequest& request, const HttpOptions& options, std::atomic<int64_t>& connections_opened) {
    Transfer transfer{request};
    const HeaderList headers = header_list(request.headers);
    curl_easy_reset(easy_);  // keeps connections
    set_up(request, options, headers.get(), transfer);
    const CURLcode code = curl_easy_perform(easy_);
    long opened = 0;
    curl_easy_getinfo(easy_, CURLINFO_NUM_CONNECTS, &opened);
    connections_opened += opened;

    HttpAnswer& answer = transfer.answer;
    // The library takes a connection that ends within the headers for the end of the answer.
    if (code == CURLE_OK && (answer.status < 200 || !transfer.headers_ended)) answer.failure = "the answer ended before its content";
    if (code == CURLE_OK) return std::move(answer);
    answer.cancelled = code == CURLE_ABORTED_BY_CALLBACK && request.stop.stop_requested();
    answer.timed_out = Clock::now() + kTimerStep >= request.deadline;
    answer.hopeless = is_hopeless(code);
    answer.maybe_carried_out = !never_reached_server(code);
    answer.failure = !transfer.refused.empty() ? transfer.refused : message_[0] ? message_ : curl_easy_strerror(code);
    long reason = 0;
    curl_easy_getinfo(easy_, CURLINFO_OS_ERRNO, &reason);
    if (code == CURLE_COULDNT_CONNECT && reason != 0) answer.failure += ": " + std::generic_category().message(static_cast<int>(reason));
    return std::move(answer);
  }

 private:
  template <class Value>
  void set(CURLoption option, Value value) {
    const CURLcode code = curl_easy_setopt(easy_, option, value);
    if (code != CURLE_OK)
      throw base::Error(fmt::format("libcurl refuses its option {}: {}", static_cast<int>(option), curl_easy_strerror(code)));
  }

  void set_up(const HttpRequest& request, const HttpOptions& options, curl_slist* headers, Transfer& transfer) {
    message_[0] = '\0';
    set(CURLOPT_ERRORBUFFER, message_);
    set(CURLOPT_URL, request.url.c_str());
    set(CURLOPT_PATH_AS_IS, 1L);  // "/../" is part of a key, and signed
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_BUFFERSIZE, kBufferBytes);
    set(CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
    set(CURLOPT_TCP_KEEPALIVE, 1L);
    if (request.direct) set(CURLOPT_NOPROXY, "*");
    const std::string certificates = options.ca_bundle.empty() ? system_certificates() : options.ca_bundle;
    if (!certificates.empty()) set(CURLOPT_CAINFO, certificates.c_str());

    if (request.method == "HEAD") {
      set(CURLOPT_NOBODY, 1L);
    } else if (request.method == "PUT" || request.method == "POST") {
      set(CURLOPT_UPLOAD, 1L);
      set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
      set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
      set(CURLOPT_READFUNCTION, on_send);
      set(CURLOPT_READDATA, &transfer);
      set(CURLOPT_SEEKFUNCTION, on_rewind);
      set(CURLOPT_SEEKDATA, &transfer);
    } else {
      set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
    }
    set(CURLOPT_HTTPHEADER, headers);
    set(CURLOPT_USERAGENT, "ingot");
    set(CURLOPT_HEADERFUNCTION, on_header);
    set(CURLOPT_HEADERDATA, &transfer);
    set(CURLOPT_WRITEFUNCTION, on_body);
    set(CURLOPT_WRITEDATA, &transfer);
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_XFERINFOFUNCTION, on_progress);
    set(CURLOPT_XFERINFODATA, &transfer);
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options.connect_s * 1000));
    set(CURLOPT_TIMEOUT_MS, remaining_ms(request.deadline));
    if (request.stall_s > 0) {
      set(CURLOPT_LOW_SPEED_LIMIT, kStallBytesPerS);
      set(CURLOPT_LOW_SPEED_TIME, std::max(1L, static_cast<long>(request.stall_s)));
    }
  }

  CURL* easy_;
  char message_[CURL_ERROR_SIZE] = {};
};

Http::Http(HttpOptions options) : options_(std::move(options)) {
  options_.connections = std::max(1, options_.connections);
  free_.reserve(static_cast<size_t>(options_.connections));
  initialise_curl();
}
Http::~Http() = default;

// Null when the deadline passed or the request was cancelled.
Http::Handle* Http::take(const HttpRequest& request) {
  std::unique_lock lock(mutex_);
  const auto may_go = [&] { return !free_.empty() || handles_.size() < static_cast<size_t>(options_.connections); };
  if (!changed_.wait_until(lock, request.stop, request.deadline, may_go)) return nullptr;
  if (free_.empty()) {
    handles_.push_back(std::make_unique<Handle>());
    return handles_.back().get();
  }
  Handle* handle = free_.back();  // the last one used: its connection is the least likely to have been closed
  free_.pop_back();
  return handle;
}

void Http::give_back(Handle* handle) {
  {
    const std::lock_guard guard(mutex_);
    free_.push_back(handle);
  }
  changed_.notify_one();
}

HttpAnswer Http::perform(const HttpRequest& request) {
  Handle* handle = take(request);
  if (!handle) {
    HttpAnswer answer;
    answer.maybe_carried_out = false;
    answer.cancelled = request.stop.stop_requested();
    answer.timed_out = !answer.cancelled;
    answer.failure = fmt::format("all {} connections were busy until the deadline", options_.connections);
    return answer;
  }
  const std::unique_ptr<Handle, std::function<void(Handle*)>> lease(handle, [this](Handle* used) { give_back(used); });
  return handle->perform(request, options_, connections_opened_);
}

}  // namespace ingot::object_store
