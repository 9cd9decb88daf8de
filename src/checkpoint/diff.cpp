#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/error.h"
#include "checkpoint/commands.h"
#include "checkpoint/format/boxes.h"
#include "checkpoint/format/elements.h"
#include "checkpoint/load/match.h"
#include "checkpoint/load/tensor_source.h"

namespace ingot::checkpoint {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kSlabElements = int64_t{1} << 20;

struct TensorDiff {
  std::string name;
  bool bytes_equal = true;
  Difference difference;
  int64_t numbers = 0;

  double max_rel() const { return difference.max_reference > 0 ? difference.max_abs / difference.max_reference : difference.max_abs; }
  /// With a tolerance, numbers decide; without, every bit does.
  bool passes(double atol) const { return bytes_equal || (atol > 0 && difference.max_abs <= atol); }
};

using VisitSlab = std::function<void(const std::vector<std::byte>& left, const std::vector<std::byte>& right)>;

// Reads both sides slab by slab, so that memory does not grow with the tensors.
void for_each_slab(const TensorSource& a, const tensor::LogicalTensor& in_a, const TensorSource& b, const tensor::LogicalTensor& in_b,
                   const VisitSlab& visit) {
  std::vector<std::byte> left, right;
  for (const tensor::Box& slab : cut(tensor::whole(in_a.shape), kSlabElements)) {
    const int64_t elements = tensor::element_count(slab.extent);
    left.resize(static_cast<size_t>(elements * tensor::size_bytes(in_a.dtype)));
    right.resize(static_cast<size_t>(elements * tensor::size_bytes(in_b.dtype)));
    a.read_run(in_a, slab, left.data());
    b.read_run(in_b, slab, right.data());
    visit(left, right);
  }
}

// First the bytes, which are equal as a rule; only if not, once more as numbers.
TensorDiff compare_tensor(const TensorSource& a, const tensor::LogicalTensor& in_a, const TensorSource& b,
                          const tensor::LogicalTensor& in_b) {
  TensorDiff result{in_a.name, in_a.dtype == in_b.dtype, {}, tensor::element_count(in_a.shape) * numbers_per_element(in_a.dtype)};
  if (result.bytes_equal)
    for_each_slab(a, in_a, b, in_b, [&](const auto& left, const auto& right) { result.bytes_equal = result.bytes_equal && left == right; });
  if (!result.bytes_equal) {
    for_each_slab(a, in_a, b, in_b, [&](const auto& left, const auto& right) {
      const int64_t elements = static_cast<int64_t>(left.size()) / tensor::size_bytes(in_a.dtype);
      result.difference.add(in_a.dtype, left.data(), in_b.dtype, right.data(), elements * numbers_per_element(in_a.dtype));
    });
  }
  return result;
}

struct Comparison {
  Mismatch mismatch;
  std::vector<TensorDiff> tensors;
  std::vector<std::string> extras;  // that differ or that only one side has
  double atol = 0;

  bool equal() const {
    return mismatch.missing.empty() && mismatch.unexpected.empty() && mismatch.shapes.empty() && (atol > 0 || mismatch.dtypes.empty()) &&
           std::all_of(tensors.begin(), tensors.end(), [&](const TensorDiff& t) { return t.passes(atol); });
  }
};

std::vector<std::string> differing_extras(const Reader& a, const Reader& b) {
  std::vector<std::string> names = a.extras(), out;
  for (const std::string& name : b.extras()) names.push_back(name);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (const std::string& name : names) {
    if (!a.has_extra(name) || !b.has_extra(name) || a.extra(name) != b.extra(name)) out.push_back(name);
  }
  return out;
}

Comparison compare_all(const TensorSource& a, const TensorSource& b, double atol) {
  const auto left = a.list(), right = b.list();
  Comparison comparison{compare(left, right), {}, {}, atol};
  for (const auto& in_a : left) {
    const auto in_b = std::lower_bound(right.begin(), right.end(), in_a.name,
                                       [](const tensor::LogicalTensor& t, const std::string& name) { return t.name < name; });
    if (in_b == right.end() || in_b->name != in_a.name || in_b->shape != in_a.shape) continue;
    if (numbers_per_element(in_a.dtype) != numbers_per_element(in_b->dtype)) continue;  // complex against real
    comparison.tensors.push_back(compare_tensor(a, in_a, b, *in_b));
  }
  if (a.reader() && b.reader()) comparison.extras = differing_extras(*a.reader(), *b.reader());
  return comparison;
}

ordered_json names_of(const std::vector<tensor::LogicalTensor>& tensors) {
  ordered_json names = ordered_json::array();
  for (const auto& tensor : tensors) names.push_back(tensor.name);
  return names;
}

ordered_json pairs_of(const std::vector<Pair>& pairs) {
  ordered_json out = ordered_json::array();
  for (const Pair& pair : pairs) {
    out.push_back({{"name", pair.wanted.name},
                   {"a", {{"dtype", tensor::name_of(pair.wanted.dtype)}, {"shape", pair.wanted.shape}}},
                   {"b", {{"dtype", tensor::name_of(pair.present.dtype)}, {"shape", pair.present.shape}}}});
  }
  return out;
}

// JSON has no infinity: null stands for it.
ordered_json finite(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr); }

ordered_json json_of(const Comparison& comparison, const DiffOptions& options) {
  ordered_json tensors = ordered_json::array();
  for (const TensorDiff& one : comparison.tensors) {
    tensors.push_back({{"name", one.name},
                       {"bytes_equal", one.bytes_equal},
                       {"different", one.difference.different},
                       {"numbers", one.numbers},
                       {"max_abs", finite(one.difference.max_abs)},
                       {"max_rel", finite(one.max_rel())},
                       {"pass", one.passes(options.atol)}});
  }
  return {{"a", options.a.string()},
          {"b", options.b.string()},
          {"atol", options.atol},
          {"equal", comparison.equal()},
          {"only_in_a", names_of(comparison.mismatch.missing)},
          {"only_in_b", names_of(comparison.mismatch.unexpected)},
          {"shapes_differ", pairs_of(comparison.mismatch.shapes)},
          {"dtypes_differ", pairs_of(comparison.mismatch.dtypes)},
          {"extras_differ", comparison.extras},
          {"tensors", tensors}};
}

void print_text(const Comparison& comparison, const DiffOptions& options, std::ostream& out) {
  std::vector<const TensorDiff*> differing;
  for (const TensorDiff& one : comparison.tensors) {
    if (!one.passes(options.atol)) differing.push_back(&one);
  }
  // The largest difference first.
  std::stable_sort(differing.begin(), differing.end(),
                   [](const TensorDiff* x, const TensorDiff* y) { return x->max_rel() > y->max_rel(); });
  const auto rows = std::min(differing.size(), static_cast<size_t>(std::max<int64_t>(options.rows, 0)));
  size_t width = 4;
  for (size_t i = 0; i < rows; ++i) width = std::max(width, differing[i]->name.size());
  if (rows > 0) out << fmt::format("{:<{}}  {:>12} {:>12}  numbers that differ\n", "name", width, "max abs", "max rel");
  for (size_t i = 0; i < rows; ++i) {
    const TensorDiff& one = *differing[i];
    out << fmt::format("{:<{}}  {:>12.4g} {:>12.4g}  {} of {}\n", one.name, width, one.difference.max_abs, one.max_rel(),
                       one.difference.different, one.numbers);
  }
  if (differing.size() > rows) out << fmt::format("… and {} more tensors\n", differing.size() - rows);
  const auto only = [&](const char* where, const std::vector<tensor::LogicalTensor>& tensors) {
    for (const auto& tensor : tensors) out << fmt::format("only in {}: {}\n", where, tensor.name);
  };
  only("a", comparison.mismatch.missing);
  only("b", comparison.mismatch.unexpected);
  for (const Pair& pair : comparison.mismatch.shapes)
    out << fmt::format("shapes differ: {} {} and {}\n", pair.wanted.name, tensor::to_string(pair.wanted.shape),
                       tensor::to_string(pair.present.shape));
  for (const Pair& pair : comparison.mismatch.dtypes)
    out << fmt::format("dtypes differ: {} {} and {}\n", pair.wanted.name, tensor::name_of(pair.wanted.dtype),
                       tensor::name_of(pair.present.dtype));
  if (!comparison.extras.empty()) out << fmt::format("extra state that differs: {}\n", fmt::join(comparison.extras, ", "));
  out << fmt::format("{} tensors compared, {} differ{}\n", comparison.tensors.size(), differing.size(),
                     options.atol > 0 ? fmt::format(" by more than {}", options.atol) : std::string());
}

}  // namespace

int diff(const DiffOptions& options, std::ostream& out) {
  if (!(options.atol >= 0)) throw base::UsageError("a tolerance of {} is not possible", options.atol);
  const auto a = open_tensors(options.a, *options.storage_a), b = open_tensors(options.b, *options.storage_b);
  const Comparison comparison = compare_all(*a, *b, options.atol);
  if (options.json) {
    out << json_of(comparison, options).dump(2, ' ', false, ordered_json::error_handler_t::replace) << '\n';
  } else {
    print_text(comparison, options, out);
  }
  return comparison.equal() ? 0 : 3;
}

}  // namespace ingot::checkpoint
