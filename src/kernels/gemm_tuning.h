// train.gemm_backend = "tuned": for each GEMM that a GPU is given the algorithm of the vendor's library that was measured to be fastest for
// its sizes, where the library by itself takes the one that its rules put first.
//
// The first time a GEMM is met, those that the library proposes run on it by turns, some milliseconds; then it has its algorithm for good.
// Algorithms differ in the order of their sums and so in the last digits, which is why a run keeps its own table in a file: one that goes
// on from there takes the same. A second file, of the machine, spares the next run the measuring.
//
// Each rank measures for itself. So what several ranks compute alike, and must have alike to the last bit, is not for this: see
// UntunedGemms, and bench/gemm_backend_setting.cpp for the layouts that are refused.
#pragma once

#include <compare>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "device/aten.h"
#include "kernels/gpu/library_gemm.h"

namespace ingot::kernels {

/// What decides which algorithm is fastest: out [m, n] (+)= a [m, k] b [k, n] (+ bias). Strides are of the rows, or columns, that lie
/// together.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  bool a_by_column = false, b_by_column = false;
  int64_t a_stride = 0, b_stride = 0, out_stride = 0;
  at::ScalarType numbers = at::kBFloat16, sums = at::kBFloat16;  // of a and b; of out
  bool adds = false, has_bias = false;
  auto operator<=>(const GemmShape&) const = default;
};

struct GemmChoice {
  gpu::GemmAlgorithm algorithm{};
  double seconds = 0, first_s = 0;  // medians; first_s: of the library's first choice
  bool operator==(const GemmChoice&) const = default;
};

/// The choices of one library on one kind of device.
class GemmTable {
 public:
  explicit GemmTable(std::string library) : library_(std::move(library)) {}
  const GemmChoice* find(const GemmShape& shape) const;
  void keep(const GemmShape& shape, const GemmChoice& choice) { choices_[shape] = choice; }
  /// Those of `other` in place of own ones.
  void add(const GemmTable& other) {
    for (const auto& [shape, choice] : other.choices_) choices_[shape] = choice;
  }
  size_t size() const { return choices_.size(); }
  const std::string& library() const { return library_; }

  std::string to_json() const;
  /// Throws ProfileError naming `origin`, the member and what it should be.
  static GemmTable from_json(const std::string& text, const std::string& origin);

 private:
  std::string library_;  // its name, version and device
  std::map<GemmShape, GemmChoice> choices_;
};

/// `bias` [n] may be undefined. Where `adds`, to what is in `out`.
struct GemmCall {
  at::Tensor out, a, b, bias;
  bool adds = false;
};

/// What can multiply in several ways: a vendor's library, or the emulated device.
class GemmLibrary {
 public:
  virtual ~GemmLibrary() = default;
  virtual std::string name() const = 0;
  /// The first choice first; none where it cannot.
  virtual std::vector<gpu::GemmAlgorithm> algorithms(const GemmCall& call) = 0;
  virtual void run(const GemmCall& call, const gpu::GemmAlgorithm& algorithm) = 0;
  /// Of one that a file had: whether the library takes it for this call.
  virtual bool is_able(const GemmCall& /*call*/, const gpu::GemmAlgorithm& /*algorithm*/) { return true; }
};

/// Of a GPU or an emulated device; null where its GPU library has none.
std::unique_ptr<GemmLibrary> gemm_library_of(at::Device device);

constexpr size_t kMostTunedShapes = 4096;  // of a run: more are numbers of rows that change, and go without

class GemmTuner {
 public:
  using Seconds = std::function<double(const std::function<void()>& work)>;
  /// `own`: the file of a run, `shared`: that of a machine, from which choices are taken that the run has not got, and where new ones go if
  /// `writes_shared`. Empty ones are none. A file that cannot be read, or is of another library, is as if it were empty, with a warning.
  GemmTuner(std::unique_ptr<GemmLibrary> library, std::filesystem::path own, std::filesystem::path shared, bool writes_shared,
            Seconds seconds);

  /// False where the library cannot, and nothing was done. One thread at a time, others wait.
  bool run(const GemmCall& call);
  const GemmTable& table() const { return own_; }

 private:
  const GemmChoice* choice_for(const GemmShape& shape, const GemmCall& call);
  std::optional<GemmChoice> measure(const GemmCall& call, const std::vector<gpu::GemmAlgorithm>& algorithms);
  void share(const GemmShape& shape, const GemmChoice& choice);
  void write(std::filesystem::path& file, const GemmTable& table) const;

  std::unique_ptr<GemmLibrary> library_;
  std::filesystem::path own_file_, shared_file_;
  bool writes_shared_;
  Seconds seconds_;
  std::mutex mutex_;
  GemmTable own_, shared_;
  std::set<GemmShape> proved_, impossible_;  // that this process has run, and that it has to do without
};

/// The process's tuner of a device, from now on with these files (see GemmTuner). Before GEMMs that matter.
void keep_gemm_choices(at::Device device, const std::filesystem::path& own, const std::filesystem::path& shared, bool writes_shared);
/// Where choices of this machine's device are kept below a cache's folder; empty for an empty one.
std::filesystem::path gemm_choices_file(const std::filesystem::path& cache_folder, at::Device device);
/// While it lives, GEMMs of this thread are what they are without "tuned": those of other sizes each time, and those that ranks repeat.
class UntunedGemms {
 public:
  UntunedGemms();
  ~UntunedGemms();
  UntunedGemms(const UntunedGemms&) = delete;
  UntunedGemms& operator=(const UntunedGemms&) = delete;
};

/// By the process's tuner of the device of `call`, which must be a GPU or emulated. False where it cannot, and nothing was done.
bool run_tuned(const GemmCall& call);

}  // namespace ingot::kernels
