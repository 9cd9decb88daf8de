#include "kernels/gemm_tuning.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/json_members.h"
#include "base/log.h"
#include "base/random.h"
#include "device/device.h"
#include "device/gpu_library.h"
#include "device/stream.h"
#include "device/virtual_device.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

namespace fs = std::filesystem;
using gpu::GemmAlgorithm;

constexpr int kMostAlgorithms = 12, kRounds = 7;
constexpr double kWorthwhileGain = 0.02;  // over the library's first choice: less may be chance, and would differ from run to run
constexpr double kRoundSeconds = 1e-3;    // at least, so that launches and clocks do not count

// A matrix whose rows or columns lie together, as libraries take it.
struct Layout {
  bool by_column;
  int64_t stride;
};
std::optional<Layout> layout_of(const at::Tensor& matrix) {
  const auto lies = [&](int64_t line, int64_t unit) { return matrix.stride(unit) == 1 && matrix.stride(line) >= matrix.size(unit); };
  const bool is_by_row = (matrix.size(1) == 1 || matrix.stride(1) == 1) && (matrix.size(0) == 1 || matrix.stride(0) >= matrix.size(1));
  if (is_by_row) return Layout{false, matrix.size(0) == 1 ? matrix.size(1) : matrix.stride(0)};
  if (lies(1, 0)) return Layout{true, matrix.stride(1)};
  return std::nullopt;
}

constexpr int64_t kAlignment = 16;  // bytes, of every address

std::optional<GemmShape> shape_of(const GemmCall& call) {
  const auto& [out, a, b, bias, adds] = call;
  const auto is_known = [](at::ScalarType type) { return type == at::kFloat || type == at::kBFloat16; };
  if (a.scalar_type() != b.scalar_type() || !is_known(a.scalar_type()) || !is_known(out.scalar_type()) || out.numel() == 0 ||
      a.numel() == 0 || (a.scalar_type() == at::kFloat && out.scalar_type() != at::kFloat))
    return std::nullopt;
  const auto left = layout_of(a), right = layout_of(b), result = layout_of(out);
  if (!left || !right || !result || result->by_column) return std::nullopt;
  for (const auto& tensor : {out, a, b, bias})
    if (tensor.defined() && (tensor.storage_offset() * tensor.element_size()) % kAlignment != 0) return std::nullopt;
  return GemmShape{out.size(0),      out.size(1),       a.size(1),     left->by_column,
                   right->by_column, left->stride,      right->stride, result->stride,
                   a.scalar_type(),  out.scalar_type(), adds,          bias.defined()};
}

class VendorsLibrary : public GemmLibrary {
 public:
  using Name = void(int device, char* text, int size);
  using Algorithms = int(const gpu::LibraryGemm*, int device, GemmAlgorithm* found, int most);
  using Run = int(const gpu::LibraryGemm*, const GemmAlgorithm*, int device);

  explicit VendorsLibrary(at::Device device)
      : device_(device.index()),
        name_(device::gpu_function<Name>("ingot_gemm_library")),
        algorithms_(device::gpu_function<Algorithms>("ingot_gemm_algorithms")),
        is_able_(device::gpu_function<Run>("ingot_gemm_is_able")),
        run_(device::gpu_function<Run>("ingot_gemm")) {}
  bool is_here() const { return name_ && algorithms_ && is_able_ && run_; }

  std::string name() const override {
    std::array<char, 512> text{};
    name_(device_, text.data(), static_cast<int>(text.size()));
    return text.data();
  }
  std::vector<GemmAlgorithm> algorithms(const GemmCall& call) override {
    std::vector<GemmAlgorithm> found(kMostAlgorithms);
    const auto gemm = bound(call);
    const int count = algorithms_(&gemm, device_, found.data(), kMostAlgorithms);
    if (count < 0)
      base::log_warning("{} has no algorithms to choose from for a GEMM [{}, {}] x [{}, {}]: error {}; it goes through torch's choice",
                        name(), gemm.m, gemm.k, gemm.k, gemm.n, -count);
    found.resize(static_cast<size_t>(std::max(0, count)));
    return found;
  }
  bool is_able(const GemmCall& call, const GemmAlgorithm& algorithm) override {
    const auto gemm = bound(call);
    return is_able_(&gemm, &algorithm, device_) != 0;
  }
  void run(const GemmCall& call, const GemmAlgorithm& algorithm) override {
    const auto gemm = bound(call);
    if (const int error = run_(&gemm, &algorithm, device_); error != 0)
      throw base::Error(
          fmt::format("a GEMM [{}, {}] x [{}, {}] did not start: error {} of {}; train.gemm_backend = \"default\" goes without", gemm.m,
                      gemm.k, gemm.k, gemm.n, error, name()));
  }

 private:
  static gpu::LibraryGemm bound(const GemmCall& call) {
    const auto numbers = [](at::ScalarType type) { return type == at::kFloat ? gpu::GemmNumbers::fp32 : gpu::GemmNumbers::bf16; };
    const auto matrix = [](const at::Tensor& m) {
      const auto layout = layout_of(m).value();
      return gpu::GemmMatrix{m.const_data_ptr(), layout.stride, layout.by_column};
    };
    return {call.out.size(0),
            call.out.size(1),
            call.a.size(1),
            matrix(call.a),
            matrix(call.b),
            call.out.mutable_data_ptr(),
            layout_of(call.out).value().stride,
            address(call.bias),
            numbers(call.a.scalar_type()),
            numbers(call.out.scalar_type()),
            call.adds};
  }

  int device_;
  Name* name_;
  Algorithms* algorithms_;
  Run *is_able_, *run_;
};

// The host's GEMM, whole or in parts of the sum: as algorithms do, they differ in the last digits.
class EmulatedLibrary : public GemmLibrary {
 public:
  std::string name() const override { return "emulated"; }
  std::vector<GemmAlgorithm> algorithms(const GemmCall& /*call*/) override { return {{{1}, 0}, {{2}, 0}, {{3}, 0}}; }
  void run(const GemmCall& call, const GemmAlgorithm& algorithm) override {
    const int64_t k = call.a.size(1), parts = std::clamp<int64_t>(static_cast<int64_t>(algorithm.words[0]), 1, k);
    const double flops = 2.0 * static_cast<double>(call.a.numel()) * static_cast<double>(call.b.size(1));
    if (call.adds || call.bias.defined())
      device::note("aten::addmm", {call.adds ? call.out : call.bias, call.a, call.b}, {call.out}, flops);
    else device::note("aten::mm", {call.a, call.b}, {call.out}, flops);
    device::launch({call.out, call.a, call.b, call.bias}, [parts, k, adds = call.adds](const auto& host) {
      auto sum = adds ? host[0].to(at::kFloat) : at::zeros(host[0].sizes(), at::kFloat);
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t from = k * part / parts, count = k * (part + 1) / parts - from;
        sum.addmm_(host[1].narrow(1, from, count).to(at::kFloat), host[2].narrow(0, from, count).to(at::kFloat));
      }
      if (host[3].defined()) sum.add_(host[3]);
      host[0].copy_(sum);
    });
  }
};

const char* name_of(at::ScalarType type) { return type == at::kFloat ? "fp32" : "bf16"; }
at::ScalarType type_named(const std::string& name) { return name == "fp32" ? at::kFloat : at::kBFloat16; }

nlohmann::ordered_json json_of(const GemmShape& s, const GemmChoice& choice) {
  return {{"m", s.m},
          {"n", s.n},
          {"k", s.k},
          {"a", s.a_by_column ? "columns" : "rows"},
          {"b", s.b_by_column ? "columns" : "rows"},
          {"strides", {s.a_stride, s.b_stride, s.out_stride}},
          {"dtype", name_of(s.numbers)},
          {"out_dtype", name_of(s.sums)},
          {"adds", s.adds},
          {"bias", s.has_bias},
          {"algorithm", choice.algorithm.words},
          {"workspace_bytes", choice.algorithm.workspace_bytes},
          {"seconds", choice.seconds},
          {"first_s", choice.first_s}};
}

constexpr int64_t kLargest = int64_t{1} << 40;

uint64_t word_of(const nlohmann::json& value, const base::JsonMembers& m, const char* name, uint64_t largest) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > largest)
    m.fail(name, fmt::format("must hold whole numbers up to {}", largest));
  return value.get<uint64_t>();
}

std::pair<GemmShape, GemmChoice> read_choice(const nlohmann::json& json, const std::string& where) {
  base::JsonMembers m(json, where, "remove the file, and the algorithms are measured anew");
  GemmShape s;
  s.m = m.whole("m", kLargest);
  s.n = m.whole("n", kLargest);
  s.k = m.whole("k", kLargest);
  s.a_by_column = m.one_of("a", {"rows", "columns"}) == "columns";
  s.b_by_column = m.one_of("b", {"rows", "columns"}) == "columns";
  std::vector<int64_t> strides;
  m.list("strides", 3, 3, [&](const nlohmann::json& value, const std::string&) {
    strides.push_back(static_cast<int64_t>(word_of(value, m, "strides", static_cast<uint64_t>(kLargest))));
  });
  s.a_stride = strides[0];
  s.b_stride = strides[1];
  s.out_stride = strides[2];
  s.numbers = type_named(m.one_of("dtype", {"fp32", "bf16"}));
  s.sums = type_named(m.one_of("out_dtype", {"fp32", "bf16"}));
  s.adds = m.boolean("adds");
  s.has_bias = m.boolean("bias");
  GemmChoice choice;
  size_t word = 0;
  m.list("algorithm", choice.algorithm.words.size(), choice.algorithm.words.size(), [&](const nlohmann::json& value, const std::string&) {
    choice.algorithm.words.at(word++) = word_of(value, m, "algorithm", ~uint64_t{0});
  });
  choice.algorithm.workspace_bytes = word_of(m.member("workspace_bytes"), m, "workspace_bytes", gpu::kMostGemmWorkspace);
  choice.seconds = m.not_negative("seconds");
  choice.first_s = m.not_negative("first_s");
  m.finish();
  return {s, choice};
}

GemmTable read_table(const fs::path& file, const std::string& library) {
  GemmTable empty(library);
  try {
    if (file.empty() || !fs::exists(file)) return empty;
    auto table = GemmTable::from_json(base::read_file(file), file.string());
    if (table.library() == library) return table;
    base::log_warning("{} is of {}, and here is {}: algorithms of GEMMs are measured anew, and results may differ in the last digits",
                      file.string(), table.library(), library);
  } catch (const std::exception& failure) {
    base::log_warning("{}; algorithms of GEMMs are measured anew", base::message_of(failure));
  }
  return empty;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

thread_local int untuned_scopes = 0;

std::mutex tuners_mutex;
std::map<std::pair<at::DeviceType, at::DeviceIndex>, std::unique_ptr<GemmTuner>>& tuners() {
  static auto& all = *new std::map<std::pair<at::DeviceType, at::DeviceIndex>, std::unique_ptr<GemmTuner>>;
  return all;
}

std::unique_ptr<GemmTuner> tuner_of(at::Device device, const fs::path& own, const fs::path& shared, bool writes_shared) {
  auto library = gemm_library_of(device);
  if (!library) return nullptr;
  return std::make_unique<GemmTuner>(std::move(library), own, shared, writes_shared, [device](const std::function<void()>& work) {
    // Of this stream alone: another may wait for a message that comes only after this GEMM.
    const c10::impl::VirtualGuardImpl guard(device.type());
    const auto stream = guard.getStream(device);
    guard.synchronizeStream(stream);
    const auto start = std::chrono::steady_clock::now();
    work();
    guard.synchronizeStream(stream);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  });
}

}  // namespace

const GemmChoice* GemmTable::find(const GemmShape& shape) const {
  const auto found = choices_.find(shape);
  return found == choices_.end() ? nullptr : &found->second;
}

std::string GemmTable::to_json() const {
  nlohmann::ordered_json json{{"library", library_}, {"gemms", nlohmann::ordered_json::array()}};
  for (const auto& [shape, choice] : choices_) json["gemms"].push_back(json_of(shape, choice));
  return json.dump(1) + "\n";
}

GemmTable GemmTable::from_json(const std::string& text, const std::string& origin) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw base::ProfileError("{} is not JSON", origin);
  base::JsonMembers m(json, origin, "remove the file, and the algorithms are measured anew");
  GemmTable table(m.text("library"));
  constexpr size_t kMost = 100'000;
  m.list("gemms", 0, kMost, [&](const nlohmann::json& entry, const std::string& where) {
    const auto [shape, choice] = read_choice(entry, where);
    table.keep(shape, choice);
  });
  m.finish();
  return table;
}

std::unique_ptr<GemmLibrary> gemm_library_of(at::Device device) {
  if (device::is_emulated(device)) return std::make_unique<EmulatedLibrary>();
  if (!device.is_cuda()) return nullptr;
  auto library = std::make_unique<VendorsLibrary>(device);
  return library->is_here() ? std::move(library) : nullptr;
}

GemmTuner::GemmTuner(std::unique_ptr<GemmLibrary> library, fs::path own, fs::path shared, bool writes_shared, Seconds seconds)
    : library_(std::move(library)),
      own_file_(std::move(own)),
      shared_file_(std::move(shared)),
      writes_shared_(writes_shared),
      seconds_(std::move(seconds)),
      own_(read_table(own_file_, library_->name())),
      shared_(read_table(shared_file_, library_->name())) {}

bool GemmTuner::run(const GemmCall& call) {
  const auto shape = shape_of(call);
  if (!shape) return false;
  const std::lock_guard lock(mutex_);
  const auto* choice = proved_.contains(*shape) ? own_.find(*shape) : choice_for(*shape, call);
  if (!choice) return false;
  library_->run(call, choice->algorithm);
  return true;
}

// At the first GEMM of a shape; null where it has to do without.
const GemmChoice* GemmTuner::choice_for(const GemmShape& shape, const GemmCall& call) {
  if (impossible_.contains(shape)) return nullptr;
  for (const auto* table : {&own_, &shared_}) {
    const auto* known = table->find(shape);
    if (!known) continue;
    if (library_->is_able(call, known->algorithm)) {
      if (table == &shared_) {
        own_.keep(shape, *known);
        write(own_file_, own_);
      }
      proved_.insert(shape);
      return own_.find(shape);
    }
    base::log_warning("{} has an algorithm for a GEMM [{}, {}] x [{}, {}] that {} does not take; it is measured anew",
                      (table == &own_ ? own_file_ : shared_file_).string(), shape.m, shape.k, shape.k, shape.n, library_->name());
  }
  const bool is_full = own_.size() >= kMostTunedShapes;
  if (is_full && impossible_.empty())
    base::log_warning("GEMMs have more than {} shapes: further ones go through torch's choice of an algorithm", kMostTunedShapes);
  const auto fresh = is_full ? std::nullopt : measure(call, library_->algorithms(call));
  if (!fresh) {
    impossible_.insert(shape);
    return nullptr;
  }
  own_.keep(shape, *fresh);
  write(own_file_, own_);
  if (fresh->seconds > 0) share(shape, *fresh);
  proved_.insert(shape);
  return own_.find(shape);
}

// With what other processes have put there meanwhile. One that has no turn goes on without: what is lost at worst is measured again.
void GemmTuner::share(const GemmShape& shape, const GemmChoice& choice) {
  shared_.keep(shape, choice);
  if (!writes_shared_ || shared_file_.empty()) return;
  std::optional<base::FileLock> turn;
  try {
    base::make_directories(shared_file_.parent_path());
    turn = base::FileLock::try_take(shared_file_.string() + ".lock");
  } catch (const std::exception&) {  // what cannot be written is said below
  }
  auto together = read_table(shared_file_, library_->name());
  together.add(shared_);
  shared_ = std::move(together);
  write(shared_file_, shared_);
}

// seconds is 0 where nothing was measured: there is one, or no memory for a result that nobody needs.
std::optional<GemmChoice> GemmTuner::measure(const GemmCall& call, const std::vector<GemmAlgorithm>& algorithms) {
  if (algorithms.empty()) return std::nullopt;
  if (algorithms.size() == 1)
    return library_->is_able(call, algorithms.front()) ? std::optional(GemmChoice{algorithms.front()}) : std::nullopt;
  auto trial = call;
  try {
    trial.out = at::empty_strided(call.out.sizes(), call.out.strides(), call.out.options());  // what is added to must stay
  } catch (const std::exception& failure) {
    if (!device::is_out_of_memory(failure)) throw;
    return GemmChoice{algorithms.front()};
  }
  const auto times = [&](const GemmAlgorithm& algorithm, int64_t count) {
    return seconds_([&] {
      for (int64_t i = 0; i < count; ++i) library_->run(trial, algorithm);
    });
  };
  std::vector<GemmAlgorithm> able;
  int64_t count = 1;
  for (const auto& algorithm : algorithms) try {
      const double warm_up = times(algorithm, 1), once = times(algorithm, 1);
      if (able.empty()) count = std::clamp<int64_t>(static_cast<int64_t>(kRoundSeconds / std::max(std::min(warm_up, once), 1e-6)), 1, 100);
      able.push_back(algorithm);
    } catch (const base::Error&) {  // proposed, and not able to
    }
  if (able.empty()) return std::nullopt;
  std::vector<std::vector<double>> seconds(able.size());
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < able.size(); ++i) seconds[i].push_back(times(able[i], count) / static_cast<double>(count));
  size_t best = 0;
  std::vector<double> medians;
  for (const auto& of_one : seconds) medians.push_back(median(of_one));
  for (size_t i = 1; i < able.size(); ++i)
    if (medians[i] < medians[best]) best = i;
  if (medians[best] > medians.front() / (1 + kWorthwhileGain)) best = 0;
  return GemmChoice{able[best], medians[best], medians.front()};
}

// Once it failed it is left alone: a full disk must not end a run for a file that only spares work.
void GemmTuner::write(fs::path& file, const GemmTable& table) const {
  if (file.empty()) return;
  try {
    base::make_directories(file.parent_path());
    base::write_file_atomically(file, table.to_json());
  } catch (const std::exception& failure) {
    base::log_warning("{}; algorithms of GEMMs are not kept", base::message_of(failure));
    file.clear();
  }
}

void keep_gemm_choices(at::Device device, const fs::path& own, const fs::path& shared, bool writes_shared) {
  auto tuner = tuner_of(device, own, shared, writes_shared);
  const std::lock_guard lock(tuners_mutex);
  tuners()[{device.type(), device.index()}] = std::move(tuner);
}

fs::path gemm_choices_file(const fs::path& cache_folder, at::Device device) {
  if (cache_folder.empty()) return {};
  const auto library = gemm_library_of(device);
  return library ? cache_folder / "gemm_algorithms" / fmt::format("{:016x}.json", base::stream_key(0, library->name())) : fs::path();
}

UntunedGemms::UntunedGemms() { ++untuned_scopes; }
UntunedGemms::~UntunedGemms() { --untuned_scopes; }

bool run_tuned(const GemmCall& call) {
  if (untuned_scopes > 0) return false;
  const auto device = call.out.device();
  GemmTuner* tuner = nullptr;
  {
    const std::lock_guard lock(tuners_mutex);
    auto& of_device = tuners()[{device.type(), device.index()}];
    if (!of_device) of_device = tuner_of(device, {}, {}, false);
    tuner = of_device.get();
  }
  return tuner && tuner->run(call);
}

}  // namespace ingot::kernels
