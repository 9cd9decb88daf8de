#include "interchange/torch_save.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace ingot::interchange {
namespace {

using base::CheckpointError;
using tensor::DType;

constexpr size_t kDimLimit = 64;

struct NamedDType {
  DType dtype;
  std::string_view name, storage;  // torch.float32, torch.FloatStorage; empty for those that came after typed storages
};
constexpr std::array<NamedDType, 14> kDTypes = {{{DType::fp64, "float64", "DoubleStorage"},
                                                 {DType::fp32, "float32", "FloatStorage"},
                                                 {DType::bf16, "bfloat16", "BFloat16Storage"},
                                                 {DType::fp16, "float16", "HalfStorage"},
                                                 {DType::fp8_e4m3, "float8_e4m3fn", ""},
                                                 {DType::fp8_e5m2, "float8_e5m2", ""},
                                                 {DType::int64, "int64", "LongStorage"},
                                                 {DType::int32, "int32", "IntStorage"},
                                                 {DType::int16, "int16", "ShortStorage"},
                                                 {DType::int8, "int8", "CharStorage"},
                                                 {DType::uint8, "uint8", "ByteStorage"},
                                                 {DType::boolean, "bool", "BoolStorage"},
                                                 {DType::complex64, "complex64", "ComplexFloatStorage"},
                                                 {DType::complex128, "complex128", "ComplexDoubleStorage"}}};

const NamedDType& named(DType dtype) {
  return *std::find_if(kDTypes.begin(), kDTypes.end(), [&](const NamedDType& known) { return known.dtype == dtype; });
}

bool is_call_of(const PickleValue& value, std::string_view module, std::string_view name) {
  return value.is(PickleKind::object) && value.callable().is(PickleKind::global) && value.name() == name && value.module() == module;
}

// A call of torch's that makes a plain tensor, with its name and arguments.
struct Rebuild {
  std::string_view function;
  PickleValue args;
};
std::optional<Rebuild> rebuild_of(const PickleValue& value) {
  if (!value.is(PickleKind::object) || !value.callable().is(PickleKind::global)) return std::nullopt;
  const std::string_view module = value.module(), name = value.name();
  if (module == "torch._utils" && (name == "_rebuild_tensor_v2" || name == "_rebuild_tensor_v3")) return Rebuild{name, value.args()};
  if (module == "torch._utils" && (name == "_rebuild_parameter" || name == "_rebuild_parameter_with_state") && value.args().size() > 0 &&
      !is_call_of(value.args()[0], module, name))
    return rebuild_of(value.args()[0]);
  // A tensor with attributes: the function and the class that it was made with.
  if (module == "torch._tensor" && name == "_rebuild_from_type_v2" && value.args().size() == 4) {
    const PickleValue function = value.args()[0], type = value.args()[1];
    if (function.is(PickleKind::global) && type.is(PickleKind::global) && function.module() == "torch._utils" &&
        (function.name() == "_rebuild_tensor_v2" || function.name() == "_rebuild_tensor_v3") &&
        (type.class_name() == "torch.Tensor" || type.class_name() == "torch.nn.parameter.Parameter"))
      return Rebuild{function.name(), value.args()[2]};
  }
  return std::nullopt;
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t more = lead < 0x80                   ? 0
                        : lead >= 0xc2 && lead < 0xe0 ? 1
                        : lead >= 0xe0 && lead < 0xf0 ? 2
                        : lead >= 0xf0 && lead < 0xf5 ? 3
                                                      : 4;
    if (more == 4 || more >= text.size() - i) return false;
    for (size_t k = 1; k <= more; ++k)
      if ((text[i + k] & 0xc0) != 0x80) return false;
    const auto second = more > 0 ? static_cast<unsigned char>(text[i + 1]) : 0x80;
    // Overlong forms, surrogates and what lies beyond Unicode.
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) || (lead == 0xf0 && second < 0x90) ||
        (lead == 0xf4 && second > 0x8f))
      return false;
    i += more + 1;
  }
  return true;
}

void add_byteorder(ZipWriter& zip) { zip.add("archive/byteorder", "little", 6); }

int64_t finish(ZipWriter& zip) {
  zip.add("archive/version", "3\n", 2);
  return zip.finish();
}

}  // namespace

std::string_view torch_name(DType dtype) { return named(dtype).name; }

std::optional<DType> dtype_from_torch(std::string_view name) {
  for (const NamedDType& known : kDTypes) {
    if (known.name == name) return known.dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_of(const PickleValue& value) {
  if (!value.is(PickleKind::global) || value.module() != "torch") value.fail("a dtype of torch is expected");
  return dtype_from_torch(value.name());
}

tensor::Shape shape_of(const PickleValue& value) {
  if (is_call_of(value, "torch", "Size")) {
    if (value.args().size() == 0) return {};
    const PickleValue sizes = value.args()[0];
    if (sizes.is(PickleKind::object)) sizes.fail("a shape is not made of integers");
    return shape_of(sizes);
  }
  if (!value.is(PickleKind::tuple) && !value.is(PickleKind::list)) value.fail("a shape is expected");
  if (value.size() > kDimLimit) value.fail(fmt::format("{} dims are too many", value.size()));
  tensor::Shape shape;
  for (size_t i = 0; i < value.size(); ++i) {
    shape.push_back(value[i].integer());
    if (shape.back() < 0) value.fail(fmt::format("{} cannot be an extent or offset", shape.back()));
  }
  return shape;
}

TorchArchive::TorchArchive(FileView view, bool check_crc) : zip_(std::move(view)) {
  constexpr std::string_view kPickleName = "/data.pkl";
  const auto found = std::find_if(zip_.entries().begin(), zip_.entries().end(), [&](const ZipEntry& one) {
    return one.name.ends_with(kPickleName) && one.name.find('/') == one.name.size() - kPickleName.size();
  });
  if (found == zip_.entries().end()) zip_.view().fail(0, "the archive holds no data.pkl");
  prefix_ = found->name.substr(0, found->name.find('/') + 1);
  if (const ZipEntry* order = entry("byteorder"); order && order->size_bytes < 16 && zip_.read(*order, check_crc) != "little")
    zip_.view().fail(order->header_offset, "it was written on a big-endian machine, which is not read");
  pickle_ = std::make_unique<Pickle>(zip_.read(*found, check_crc),
                                     fmt::format("{} ({} at byte {})", zip_.view().file(), found->name, zip_.view().begin()));
}

bool TorchArchive::is_tensor(const PickleValue& value) { return rebuild_of(value).has_value(); }

StoredTensor TorchArchive::tensor(const PickleValue& value) const {
  const auto rebuild = rebuild_of(value);
  if (!rebuild) value.fail("a tensor is expected");
  // _rebuild_tensor_v2(storage, begin, shape, stride, requires_grad, hooks, flags); v3 has the dtype before the flags.
  const PickleValue& args = rebuild->args;
  const bool untyped = rebuild->function == "_rebuild_tensor_v3";
  const size_t flags = untyped ? 7 : 6;
  if (!args.is(PickleKind::tuple) || args.size() < flags || args.size() > flags + 1) value.fail("a tensor has too few or too many parts");
  if (args.size() > flags && (!args[flags].is(PickleKind::dict) || args[flags].size() > 0))
    value.fail("the tensor is a conjugated or negated view, which is not read; save its resolved copy");
  // ('storage', class, key, device, number of elements)
  const PickleValue storage = args[0].id();
  if (!storage.is(PickleKind::tuple) || storage.size() != 5 || storage[0].text() != "storage")
    storage.fail("this is not the storage of a tensor");
  const std::string key(storage[2].text());

  StoredTensor out;
  const auto storage_dtype =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](const NamedDType& known) { return !untyped && known.storage == storage[1].name(); });
  const auto dtype = untyped ? dtype_of(args[6]) : storage_dtype != kDTypes.end() ? std::optional(storage_dtype->dtype) : std::nullopt;
  if (!dtype)
    value.fail(fmt::format("the dtype of the {} is not one that ingot has", untyped ? args[6].class_name() : storage[1].class_name()));
  out.dtype = *dtype;
  out.begin = args[1].integer();
  out.shape = shape_of(args[2]);
  out.stride = shape_of(args[3]);
  const ZipEntry* data = entry("data/" + key);
  if (!data) value.fail(fmt::format("its storage '{}' is not in the archive", key));
  out.entry = static_cast<size_t>(data - zip_.entries().data());

  const int64_t width = tensor::size_bytes(out.dtype), held = data->size_bytes / width;
  int64_t count = 0, last = out.begin;
  bool inside = out.begin >= 0 && out.stride.size() == out.shape.size();
  try {
    count = tensor::element_count(out.shape);
  } catch (const base::ConfigError&) {
    inside = false;
  }
  for (size_t d = 0; inside && count > 0 && d < out.shape.size(); ++d) {
    int64_t reach = 0;
    inside = !__builtin_mul_overflow(out.shape[d] - 1, out.stride[d], &reach) && !__builtin_add_overflow(last, reach, &last);
  }
  if (!inside || (count > 0 && last >= held) || count > held)
    value.fail(fmt::format("a tensor of shape {} and strides {} from element {} on does not lie within its storage of {} bytes",
                           tensor::to_string(out.shape), tensor::to_string(out.stride), out.begin, data->size_bytes));
  if (count > 0) out.data_offset = zip_.data_offset(*data);
  return out;
}

std::optional<std::string> content_of(const PickleValue& value) {
  if (value.is(PickleKind::text)) return std::string(value.text());
  if (value.is(PickleKind::bytes)) return std::string(value.bytes());
  if (is_call_of(value, "_codecs", "encode") && value.args().size() == 2 && value.args()[1].text() == "latin1") {
    std::string out;
    const std::string_view utf8 = value.args()[0].text();
    for (size_t i = 0; i < utf8.size(); ++i) {
      const auto code = static_cast<unsigned char>(utf8[i]);
      if (code < 0x80) {
        out += utf8[i];
      } else if (i + 1 < utf8.size() && (code == 0xc2 || code == 0xc3)) {
        out += static_cast<char>(code << 6 | (utf8[++i] & 0x3f));
      } else {
        value.fail("this is not latin1");
      }
    }
    return out;
  }
  return std::nullopt;
}

int64_t write_torch_tensor(const ZipWriter::Out& out, DType dtype, const tensor::Shape& shape, const std::byte* data, bool zip64) {
  const NamedDType& known = named(dtype);
  const bool untyped = known.storage.empty();
  const int64_t count = tensor::element_count(shape), bytes = count * tensor::size_bytes(dtype);
  std::vector<int64_t> stride(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) stride[d - 1] = stride[d] * std::max<int64_t>(shape[d], 1);

  PickleWriter pickle;
  pickle.global("torch._utils", untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2").mark();
  pickle.mark().text("storage");
  pickle.global(untyped ? "torch.storage" : "torch", untyped ? "UntypedStorage" : std::string(known.storage));
  pickle.text("0").text("cpu").integer(untyped ? bytes : count).tuple().persistent();
  pickle.integer(0).integers(shape).integers(stride).boolean(false);
  pickle.global("collections", "OrderedDict").empty_tuple().reduce();
  if (untyped) pickle.global("torch", std::string(known.name));
  const std::string text = pickle.tuple().reduce().finish();

  ZipWriter zip(out, zip64);
  zip.add("archive/data.pkl", text.data(), static_cast<int64_t>(text.size()));
  add_byteorder(zip);
  zip.add("archive/data/0", data, bytes);
  return finish(zip);
}

int64_t write_torch_text(const ZipWriter::Out& out, std::string_view content) {
  PickleWriter pickle;
  if (is_utf8(content)) {
    pickle.text(content);
  } else {
    pickle.bytes(content);
  }
  const std::string text = pickle.finish();
  ZipWriter zip(out);
  zip.add("archive/data.pkl", text.data(), static_cast<int64_t>(text.size()));
  add_byteorder(zip);
  return finish(zip);
}

}  // namespace ingot::interchange
