#include "plan/trace/trace_store.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <mutex>
#include <type_traits>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/format/coding.h"

namespace ingot::plan {
namespace {

namespace fs = std::filesystem;
using checkpoint::Decoder, checkpoint::Digest, checkpoint::Encoder;
using device::Trace;

constexpr size_t kMostPrograms = 4;  // whose folders stay
constexpr int64_t kMostBytes = int64_t{64} << 20;
constexpr const char *kMagic = "ingot trace 2\n", *kSuffix = ".trace";

// A Writer and a Reader go through the same description of what a trace has.
struct Writer {
  Encoder out;
  template <class Number>
  requires(std::is_arithmetic_v<Number> || std::is_enum_v<Number>) void operator()(Number& value) { out.fixed(value); }
  void operator()(std::string& value) { out.text(value); }
  template <class Element>
  void operator()(std::vector<Element>& values) {
    out.number(std::ssize(values));
    for (auto& value : values) (*this)(value);
  }
  template <class Struct>
  requires(std::is_class_v<Struct>) void operator()(Struct& value) { describe(*this, value); }
};

struct Reader {
  Decoder in;
  template <class Number>
  requires(std::is_arithmetic_v<Number> || std::is_enum_v<Number>) void operator()(Number& value) { value = in.fixed<Number>(); }
  void operator()(std::string& value) { value = in.text(); }
  template <class Element>
  void operator()(std::vector<Element>& values) {
    for (size_t left = in.count(1); left > 0; --left) (*this)(values.emplace_back());  // as many as there are bytes for
  }
  template <class Struct>
  requires(std::is_class_v<Struct>) void operator()(Struct& value) { describe(*this, value); }
};

template <class Coder, class... Fields>
void each(Coder& code, Fields&... fields) {
  (code(fields), ...);
}

template <class Coder>
void describe(Coder& code, Trace::TensorShape& s) {
  each(code, s.dtype, s.sizes);
}
template <class Coder>
void describe(Coder& code, Trace::Communication& c) {
  each(code, c.kind, c.axis, c.ranks, c.first_rank, c.stride, c.peer, c.element_bytes, c.bytes, c.sent_bytes, c.received_bytes, c.scope,
       c.wait_scope, c.start, c.wait, c.is_blocking, c.stream, c.wait_stream);
}
template <class Coder>
void describe(Coder& code, PassOperation& o) {
  each(code, o.name, o.inputs, o.outputs, o.kind, o.is_backward, o.flops, o.read_bytes, o.written_bytes, o.calls);
}
template <class Coder>
void describe(Coder& code, PassSegment::Event& e) {
  each(code, e.kind, e.index);
}
template <class Coder>
void describe(Coder& code, PassSegment& s) {
  each(code, s.operations, s.communications, s.sums, s.gathers, s.events, s.kept_bytes, s.peak_bytes);
}
template <class Coder>
void describe(Coder& code, BlockPass& b) {
  each(code, b.forward, b.backward);
}
template <class Coder>
void describe(Coder& code, PassTrace& t) {
  each(code, t.embedding, t.head, t.blocks, t.has_neighbours, t.period, t.stream_bytes, t.seconds, t.guessed);
}
template <class Coder>
void describe(Coder& code, UpdateTrace& t) {
  each(code, t.weights_bytes, t.gradients_bytes, t.optimizer_bytes, t.host_bytes, t.update_bytes, t.saved_bytes, t.sums, t.gathers,
       t.update, t.operations, t.seconds);
}

template <class TraceOf>
std::string written(const std::string& key, TraceOf trace) {
  Writer writer;
  each(writer, const_cast<std::string&>(key), trace);
  Encoder head;
  head.bytes = kMagic;
  head.digest(checkpoint::digest_of(writer.out.bytes.data(), std::ssize(writer.out.bytes)));
  return head.bytes + writer.out.bytes;
}

// Nothing where there is no such file, or another's.
template <class TraceOf>
std::optional<TraceOf> read(const fs::path& file, const std::string& key) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return std::nullopt;
  try {
    const std::string content = base::read_file(file, kMostBytes), origin = file.string();
    Decoder head(content, origin, "trace");
    if (head.take(std::string_view(kMagic).size()) != kMagic) return std::nullopt;
    const Digest digest = head.digest();
    const auto rest = head.take(head.left());
    if (checkpoint::digest_of(rest.data(), std::ssize(rest)) != digest) return std::nullopt;
    Reader reader{Decoder(rest, origin, "trace")};
    std::string own_key;
    TraceOf trace;
    each(reader, own_key, trace);
    reader.in.finish();
    if (own_key != key) return std::nullopt;
    return trace;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string hexadecimal(const Digest& digest) { return fmt::format("{:016x}{:016x}", digest.high, digest.low); }

// The file that this function is in: libingot.so, or the program it is linked into.
std::string program_digest() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&program_digest), &info) == 0 || !info.dli_fname) return {};
  const base::MappedFile program(info.dli_fname);
  return hexadecimal(checkpoint::digest_of(program.data(), program.size_bytes()));
}

bool is_of_a_program(const fs::path& folder) {
  const auto name = folder.filename().string();
  return name.size() == 32 && name.find_first_not_of("0123456789abcdef") == std::string::npos &&
         fs::is_directory(fs::symlink_status(folder));
}

// Traces alone, and the folder if it then is empty: somebody else's files may lie in one of such a name.
void remove_traces(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file(ignored) && entry.path().extension() == kSuffix) fs::remove(entry.path(), ignored);
  fs::remove(folder, ignored);
}

// Of the folders in `traces` that are programs', those of all but the latest.
void remove_old(const fs::path& traces, const fs::path& own) {
  if (!fs::exists(traces)) return;
  std::vector<std::pair<fs::file_time_type, fs::path>> others;
  for (const auto& entry : fs::directory_iterator(traces))
    if (entry.path() != own && is_of_a_program(entry.path())) others.emplace_back(entry.last_write_time(), entry.path());
  std::sort(others.rbegin(), others.rend());
  for (size_t i = kMostPrograms - 1; i < others.size(); ++i) remove_traces(others[i].second);
}

// What the process was told, and what came of it when it was first asked for.
struct Kept {
  std::mutex mutex;
  std::string cache_folder;
  std::unique_ptr<TraceStore> store;
};
Kept& kept() {
  static Kept kept;
  return kept;
}

}  // namespace

fs::path TraceStore::file_of(const std::string& key) const {
  return folder_ / (hexadecimal(checkpoint::digest_of(key.data(), std::ssize(key))) + kSuffix);
}

std::optional<PassTrace> TraceStore::pass(const std::string& key) const { return read<PassTrace>(file_of(key), key); }
std::optional<UpdateTrace> TraceStore::update(const std::string& key) const { return read<UpdateTrace>(file_of(key), key); }
void TraceStore::keep(const std::string& key, const PassTrace& trace) { write(key, written(key, trace)); }
void TraceStore::keep(const std::string& key, const UpdateTrace& trace) { write(key, written(key, trace)); }

void TraceStore::write(const std::string& key, const std::string& content) {
  if (!is_open_) return;
  try {
    fs::create_directories(folder_);
    // Nobody waits for the disk: what a crash leaves of a file its digest gives away.
    const auto file = file_of(key), partial = folder_ / fmt::format("partial-{}{}", ::getpid(), kSuffix);
    std::ofstream out(partial, std::ios::binary | std::ios::trunc);
    out << content << std::flush;
    if (!out) throw base::FileError("cannot write {}", partial.string());
    out.close();
    fs::rename(partial, file);
  } catch (const std::exception& failure) {
    is_open_ = false;
    base::log_warning("traces are not kept for the next start: {}", failure.what());
  }
}

void keep_traces(const std::string& cache_folder) {
  const std::lock_guard lock(kept().mutex);
  kept().cache_folder = cache_folder;
  kept().store.reset();
}

TraceStore* trace_store() {
  const std::lock_guard lock(kept().mutex);
  auto& [mutex, folder, store] = kept();
  if (folder.empty() || store) return store.get();
  try {
    if (const auto program = program_digest(); !program.empty()) {
      const auto traces = fs::path(folder) / "traces";
      store = std::make_unique<TraceStore>(traces / program);
      remove_old(traces, traces / program);
    }
  } catch (const std::exception&) {  // it is a cache; and a program that cannot read itself traces anew
    folder.clear();
  }
  return store.get();
}

}  // namespace ingot::plan
