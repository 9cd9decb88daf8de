// The checkpoint engine for Python. Every call that may wait gives up the interpreter's lock; a team's callbacks take it. Tensors come
// as addresses: who calls keeps them alive, until wait_copied() or until load() returned.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/error.h"
#include "base/process.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/load/load.h"
#include "checkpoint/load/match.h"
#include "checkpoint/save/writer.h"

namespace nb = nanobind;

namespace ingot::checkpoint {
namespace {

using tensor::LogicalTensor;
using tensor::Shape;
using Unlocked = nb::call_guard<nb::gil_scoped_release>;

/// Ranks as a Python object sees them: its rank, size, gather, broadcast, scatter, all_to_all and all. What they raise ends the team:
/// nobody can be told any more.
class PythonTeam : public Team {
 public:
  explicit PythonTeam(nb::object calls)
      : calls_(std::move(calls)), rank_(nb::cast<int>(calls_.attr("rank"))), size_(nb::cast<int>(calls_.attr("size"))) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<std::string> gather(const std::string& own) const override {
    std::vector<std::string> texts;
    call("gather", [&](const nb::object& gather) {
      const nb::list answers = nb::cast<nb::list>(gather(bytes(own)));
      for (const auto& answer : answers) texts.push_back(text(answer));
    });
    return texts;
  }
  std::string broadcast(const std::string& own) const override {
    std::string same;
    call("broadcast", [&](const nb::object& broadcast) { same = text(broadcast(bytes(own))); });
    return same;
  }
  std::string scatter(const std::vector<std::string>& texts) const override {
    std::string own;
    call("scatter", [&](const nb::object& scatter) {
      nb::list list;
      for (const auto& one : texts) list.append(bytes(one));
      own = text(scatter(list));
    });
    return own;
  }
  void all_to_all(const std::byte* send, const std::vector<int64_t>& send_bytes, std::byte* receive,
                  const std::vector<int64_t>& receive_bytes) const override {
    call("all_to_all", [&](const nb::object& all_to_all) {
      all_to_all(view(const_cast<std::byte*>(send), send_bytes), nb::cast(send_bytes), view(receive, receive_bytes),
                 nb::cast(receive_bytes));
    });
  }
  bool all(bool own) const override {
    bool every = false;
    call("all", [&](const nb::object& all) { every = nb::cast<bool>(all(own)); });
    return every;
  }

 private:
  static nb::bytes bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }
  static std::string text(nb::handle object) {
    const nb::bytes held = nb::cast<nb::bytes>(object);
    return {held.c_str(), held.size()};
  }
  static nb::object view(std::byte* data, const std::vector<int64_t>& parts) {
    static char nothing;
    int64_t total = 0;
    for (const int64_t part : parts) total += part;
    char* begin = total > 0 ? reinterpret_cast<char*>(data) : &nothing;
    return nb::steal(PyMemoryView_FromMemory(begin, total, PyBUF_WRITE));
  }
  template <class Body>
  void call(const char* name, Body&& body) const {
    std::string failure;
    {
      const nb::gil_scoped_acquire lock;
      try {
        body(nb::object(calls_.attr(name)));
        return;
      } catch (const std::exception& error) {  // python_error must go while the lock is held
        failure = error.what();
        try {
          calls_.attr("abandon")(failure);  // so that the others do not wait for this rank
        } catch (const std::exception&) {
        }
      }
    }
    throw base::CommError("rank {} of {}: {} failed: {}", rank_, size_, name, failure);
  }

  nb::object calls_;
  int rank_, size_;
};

using Tensor = std::tuple<std::string, std::string, Shape>;  // name, dtype, global shape
using Part = std::tuple<size_t, Shape, Shape, uintptr_t>;    // which tensor, offset, extent, address
using Phases = std::map<std::string, double>;

LogicalTensor logical(const Tensor& tensor) {
  return {std::get<0>(tensor), tensor::dtype_from_name(std::get<1>(tensor)), std::get<2>(tensor)};
}

Tensor plain(const LogicalTensor& tensor) { return {tensor.name, std::string(tensor::name_of(tensor.dtype)), tensor.shape}; }

std::vector<SaveItem> save_items(const std::vector<Tensor>& tensors, const std::vector<Part>& parts) {
  std::vector<SaveItem> items;
  for (const auto& [tensor, offset, extent, address] : parts)
    items.push_back({logical(tensors.at(tensor)), {offset, extent}, reinterpret_cast<const std::byte*>(address)});
  return items;
}

Phases phases_of(const SavePhases& p) {
  return {{"plan_s", p.plan_s},     {"copy_s", p.copy_s},   {"stall_s", p.stall_s},
          {"hash_s", p.hash_s},     {"write_s", p.write_s}, {"sync_s", p.sync_s},
          {"commit_s", p.commit_s}, {"total_s", p.total_s}, {"bytes", static_cast<double>(p.bytes)}};
}

Phases phases_of(const LoadPhases& p) {
  return {{"plan_s", p.plan_s},
          {"read_s", p.read_s},
          {"exchange_s", p.exchange_s},
          {"total_s", p.total_s},
          {"wanted_bytes", static_cast<double>(p.wanted_bytes)},
          {"read_bytes", static_cast<double>(p.read_bytes)},
          {"cached_bytes", static_cast<double>(p.cached_bytes)},
          {"sent_bytes", static_cast<double>(p.sent_bytes)},
          {"received_bytes", static_cast<double>(p.received_bytes)}};
}

template <class Report>
nb::dict phases_into(nb::dict out, const Report& report) {
  nb::list ranks;
  for (const auto& one : report.ranks) ranks.append(nb::cast(phases_of(one)));
  out["phases"] = phases_of(report.phases);
  out["ranks"] = ranks;
  return out;
}

nb::dict describe(const SaveOutcome& outcome) {
  nb::dict out;
  const auto& report = outcome.report;
  out["step"] = report.step;
  out["path"] = report.path.string();
  out["failure"] = outcome.failure;
  out["id"] = to_string(report.id);
  out["data_bytes"] = report.data_bytes;
  out["metadata_bytes"] = report.metadata_bytes;
  out["planned"] = report.planned;
  out["clean_s"] = report.clean_s;
  return phases_into(out, report);
}

/// A saver and the teams that it uses. Its end waits for what is under way, for which callbacks need the lock.
class PythonSaver {
 public:
  PythonSaver(const std::string& folder, nb::object background, nb::object calling, int64_t keep, int64_t keep_every,
              std::optional<int64_t> staging_bytes, int in_flight, bool refuse_nonfinite, int64_t piece_limit_bytes,
              int64_t file_limit_bytes) {
    SaveOptions options;
    options.storage = &local_storage_of(folder);
    options.retention = {keep, keep_every};
    // Memory is taken when it is needed: without a limit as much as the rank writes.
    options.staging_bytes = staging_bytes.value_or(int64_t{1} << 50);
    options.in_flight = in_flight;
    options.refuse_nonfinite = refuse_nonfinite;
    options.piece_limit_bytes = piece_limit_bytes;
    options.file_limit_bytes = file_limit_bytes;
    if (!background.is_none()) background_ = std::make_unique<PythonTeam>(std::move(background)), options.team = background_.get();
    if (!calling.is_none()) calling_ = std::make_unique<PythonTeam>(std::move(calling)), options.calling_team = calling_.get();
    saver_ = std::make_unique<Saver>(folder, std::move(options));
  }
  ~PythonSaver() {
    const nb::gil_scoped_release unlocked;
    saver_.reset();
  }
  PythonSaver(const PythonSaver&) = delete;
  PythonSaver& operator=(const PythonSaver&) = delete;

  void start(int64_t step, const std::vector<Tensor>& tensors, const std::vector<Part>& parts,
             const std::map<std::string, nb::bytes>& extras) {
    Extras blobs;
    for (const auto& [name, content] : extras) blobs.emplace(name, std::string(content.c_str(), content.size()));
    const auto items = save_items(tensors, parts);
    const nb::gil_scoped_release unlocked;
    saver_->start(step, items, std::move(blobs));
  }
  void wait_copied() { saver_->wait_copied(); }
  void wait() { saver_->wait(); }
  bool is_busy() const { return saver_->is_busy(); }
  nb::list finished() {
    std::vector<SaveOutcome> outcomes;
    {
      const nb::gil_scoped_release unlocked;
      outcomes = saver_->finished();
    }
    nb::list out;
    for (const auto& outcome : outcomes) out.append(describe(outcome));
    return out;
  }

 private:
  std::unique_ptr<PythonTeam> background_, calling_;
  std::unique_ptr<Saver> saver_;
};

/// A checkpoint that ranks read together, or one rank alone.
class PythonReader {
 public:
  PythonReader(const std::string& path, nb::object team, bool verify) {
    LoadOptions options;
    options.storage = &local_storage_of(path);
    options.verify = verify;
    options.machine = base::host_name();
    if (!team.is_none()) team_ = std::make_unique<PythonTeam>(std::move(team)), options.team = team_.get();
    const nb::gil_scoped_release unlocked;
    reader_ = std::make_unique<TeamReader>(path, options);
  }

  int64_t step() const { return reader_->metadata().step; }
  std::string id() const { return to_string(reader_->metadata().id); }
  std::vector<Tensor> tensors() const {
    std::vector<Tensor> all;
    for (const auto& tensor : reader_->reader().list()) all.push_back(plain(tensor));
    return all;
  }
  std::vector<std::string> extras() const { return reader_->reader().extras(); }
  nb::bytes extra(const std::string& name) const {
    std::string content;
    {
      const nb::gil_scoped_release unlocked;
      content = reader_->extra(name);
    }
    return nb::bytes(content.data(), content.size());
  }
  /// Of this rank alone: nobody waits for it.
  nb::bytes own_extra(const std::string& name) const {
    std::string content;
    {
      const nb::gil_scoped_release unlocked;
      content = reader_->reader().extra(name);
    }
    return nb::bytes(content.data(), content.size());
  }
  nb::dict load(const std::vector<Tensor>& tensors, const std::vector<Part>& parts) const {
    std::vector<LoadItem> items;
    for (const auto& [tensor, offset, extent, address] : parts)
      items.push_back({std::get<0>(tensors.at(tensor)), {offset, extent}, reinterpret_cast<std::byte*>(address)});
    LoadReport report;
    {
      const nb::gil_scoped_release unlocked;
      report = reader_->load(items);
    }
    return phases_into(nb::dict(), report);
  }
  /// What does not fit, in words, "" when all does; and the names that are missing. Not strict: those and unexpected ones are no fault.
  std::tuple<std::string, std::vector<std::string>> compare_with(const std::vector<Tensor>& wanted, bool strict) const {
    std::vector<LogicalTensor> tensors;
    for (const auto& tensor : wanted) tensors.push_back(logical(tensor));
    auto mismatch = compare(tensors, reader_->reader().list());
    std::vector<std::string> missing;
    for (const auto& tensor : mismatch.missing) missing.push_back(tensor.name);
    if (!strict) mismatch.missing.clear(), mismatch.unexpected.clear();
    return {mismatch.describe(), missing};
  }

 private:
  std::unique_ptr<PythonTeam> team_;
  std::unique_ptr<TeamReader> reader_;
};

std::string digest(uintptr_t address, int64_t size_bytes) {
  const auto found = digest_of(reinterpret_cast<const void*>(address), size_bytes);
  return fmt::format("{:016x}{:016x}", found.high, found.low);
}

std::optional<std::string> newest(const std::string& folder) {
  const auto found = latest(folder, local_storage_of(folder));
  return found ? std::optional(found->path.string()) : std::nullopt;
}

}  // namespace
}  // namespace ingot::checkpoint

NB_MODULE(_core, module) {
  using namespace ingot::checkpoint;
  nb::exception<ingot::base::Error>(module, "CheckpointError", PyExc_RuntimeError);
  nb::class_<PythonSaver>(module, "Saver")
      .def(nb::init<const std::string&, nb::object, nb::object, int64_t, int64_t, std::optional<int64_t>, int, bool, int64_t, int64_t>(),
           nb::arg("folder"), nb::arg("background").none(), nb::arg("calling").none(), nb::arg("keep"), nb::arg("keep_every"),
           nb::arg("staging_bytes").none(), nb::arg("in_flight"), nb::arg("refuse_nonfinite"), nb::arg("piece_limit_bytes"),
           nb::arg("file_limit_bytes"))
      .def("start", &PythonSaver::start)
      .def("wait_copied", &PythonSaver::wait_copied, Unlocked())
      .def("wait", &PythonSaver::wait, Unlocked())
      .def("is_busy", &PythonSaver::is_busy, Unlocked())
      .def("finished", &PythonSaver::finished);
  nb::class_<PythonReader>(module, "Reader")
      .def(nb::init<const std::string&, nb::object, bool>(), nb::arg("path"), nb::arg("team").none(), nb::arg("verify"))
      .def("step", &PythonReader::step)
      .def("id", &PythonReader::id)
      .def("tensors", &PythonReader::tensors)
      .def("extras", &PythonReader::extras)
      .def("extra", &PythonReader::extra)
      .def("own_extra", &PythonReader::own_extra)
      .def("load", &PythonReader::load)
      .def("compare_with", &PythonReader::compare_with);
  module.def("digest", &digest, Unlocked());
  module.def("latest", &newest, Unlocked());
}
