#include "data/parquet/json_text.h"

#include <arrow/array.h>
#include <arrow/extension_type.h>
#include <arrow/type.h>
#include <arrow/util/float16.h>
#include <arrow/util/utf8.h>

#include <charconv>
#include <chrono>
#include <cmath>
#include <stdexcept>

namespace ingot::data::parquet {
namespace {

using arrow::Type;

constexpr int kMostDepth = 64;  // of lists and structs in one another

void require(const arrow::DataType& type, const std::string& column, int depth) {
  if (depth > kMostDepth)
    throw std::runtime_error("column '" + column + "' has lists or structs deeper than " + std::to_string(kMostDepth));
  switch (type.id()) {
    case Type::NA:
    case Type::BOOL:
    case Type::UINT8:
    case Type::INT8:
    case Type::UINT16:
    case Type::INT16:
    case Type::UINT32:
    case Type::INT32:
    case Type::UINT64:
    case Type::INT64:
    case Type::HALF_FLOAT:
    case Type::FLOAT:
    case Type::DOUBLE:
    case Type::STRING:
    case Type::LARGE_STRING:
    case Type::STRING_VIEW:
    case Type::BINARY:
    case Type::LARGE_BINARY:
    case Type::BINARY_VIEW:
    case Type::FIXED_SIZE_BINARY:
    case Type::DATE32:
    case Type::DATE64:
    case Type::TIMESTAMP: return;
    case Type::LIST:
    case Type::LARGE_LIST:
    case Type::FIXED_SIZE_LIST: return require(*type.field(0)->type(), column + "[]", depth + 1);
    case Type::STRUCT:
      for (const auto& field : type.fields()) require(*field->type(), column + "." + field->name(), depth + 1);
      return;
    case Type::DICTIONARY: return require(*static_cast<const arrow::DictionaryType&>(type).value_type(), column, depth + 1);
    case Type::EXTENSION: return require(*static_cast<const arrow::ExtensionType&>(type).storage_type(), column, depth + 1);
    default: throw std::runtime_error("column '" + column + "' is of the type " + type.ToString() + ", which has no JSON text");
  }
}

void append_bytes(std::string_view bytes, std::string& out) {
  if (!arrow::util::ValidateUTF8(bytes)) throw std::runtime_error("it holds bytes that are not UTF-8");
  append_string(bytes, out);
}

template <class Number>
void append_number(Number number, std::string& out) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, number).ptr;
  out.append(text, end);
}

// Shortest digits that give the same double. A whole number keeps its point: it is not read as an integer.
void append_float(double number, std::string& out) {
  if (!std::isfinite(number)) {
    out += "null";
    return;
  }
  const size_t begin = out.size();
  append_number(number, out);
  if (out.find_first_of(".e", begin) == std::string::npos) out += ".0";
}

void append_digits(int64_t number, size_t digits, std::string& out) {
  const auto text = std::to_string(number);
  out.append(digits > text.size() ? digits - text.size() : 0, '0');
  out += text;
}

void append_day(int64_t days_since_1970, std::string& out) {
  constexpr int64_t kFirst = -719162, kLast = 2932896;  // the years 1 to 9999
  if (days_since_1970 < kFirst || days_since_1970 > kLast) throw std::runtime_error("it holds a time outside of the years 1 to 9999");
  const std::chrono::year_month_day day{std::chrono::sys_days{std::chrono::days{days_since_1970}}};
  append_digits(static_cast<int>(day.year()), 4, out);
  out += '-';
  append_digits(static_cast<unsigned>(day.month()), 2, out);
  out += '-';
  append_digits(static_cast<unsigned>(day.day()), 2, out);
}

int64_t divided_down(int64_t value, int64_t by) { return value / by - (value % by < 0 ? 1 : 0); }

// ISO 8601 as Python's isoformat has it: six digits of a fraction if there is one, nine if it has nanoseconds.
void append_time(const arrow::TimestampType& type, int64_t value, std::string& out) {
  constexpr int64_t kOfSecond[] = {1, 1'000, 1'000'000, 1'000'000'000}, kNanoseconds[] = {1'000'000'000, 1'000'000, 1'000, 1};
  const auto unit = static_cast<size_t>(type.unit());
  const int64_t seconds = divided_down(value, kOfSecond[unit]);
  const int64_t nanoseconds = (value - seconds * kOfSecond[unit]) * kNanoseconds[unit];
  const int64_t days = divided_down(seconds, 86400), in_day = seconds - days * 86400;
  out += '"';
  append_day(days, out);
  const char* before = "T";
  for (const int64_t part : {in_day / 3600, in_day / 60 % 60, in_day % 60}) {
    out += before;
    append_digits(part, 2, out);
    before = ":";
  }
  if (nanoseconds % 1000 != 0) append_digits(nanoseconds, 9, out += '.');
  else if (nanoseconds != 0) append_digits(nanoseconds / 1000, 6, out += '.');
  if (!type.timezone().empty()) out += "+00:00";  // with any zone the value is the time in UTC
  out += '"';
}

template <class Array>
const Array& as(const arrow::Array& array) {
  return static_cast<const Array&>(array);
}

template <class List>
void append_list(const List& list, int64_t i, std::string& out) {
  const auto& values = *list.values();
  const int64_t begin = list.value_offset(i), end = begin + list.value_length(i);
  if (begin < 0 || end < begin || end > values.length()) throw std::runtime_error("a list lies outside of its values");
  out += '[';
  for (int64_t at = begin; at < end; ++at) {
    if (at > begin) out += ',';
    append_json(values, at, out);
  }
  out += ']';
}

void append_struct(const arrow::StructArray& array, int64_t i, std::string& out) {
  const auto& fields = array.struct_type()->fields();
  out += '{';
  for (size_t at = 0; at < fields.size(); ++at) {
    if (at > 0) out += ',';
    append_string(fields[at]->name(), out);
    out += ':';
    append_json(*array.field(static_cast<int>(at)), i, out);
  }
  out += '}';
}

void append_dictionary(const arrow::DictionaryArray& array, int64_t i, std::string& out) {
  const int64_t index = array.GetValueIndex(i);
  const auto& values = *array.dictionary();
  if (index < 0 || index >= values.length()) throw std::runtime_error("a value lies outside of its dictionary");
  append_json(values, index, out);
}

}  // namespace

void require_json(const arrow::DataType& type, const std::string& column) { require(type, column, 0); }

void append_string(std::string_view text, std::string& out) {
  if (text.size() > kMostLineBytes || out.size() > 2 * kMostLineBytes) throw std::runtime_error("it is longer than 256 MiB");
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  const char* plain = text.data();  // what is not written yet
  const char* const end = plain + text.size();
  for (const char* at = plain; at != end; ++at) {
    const auto byte = static_cast<unsigned char>(*at);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out.append(plain, at);
    plain = at + 1;
    out += '\\';
    if (byte == '\n') out += 'n';
    else if (byte >= 0x20) out += *at;
    else out.append({'u', '0', '0', kHex[byte >> 4], kHex[byte & 15]});
  }
  out.append(plain, end);
  out += '"';
}

void append_json(const arrow::Array& array, int64_t i, std::string& out) {
  if (array.IsNull(i)) {
    out += "null";
    return;
  }
  switch (array.type_id()) {
    case Type::BOOL: out += as<arrow::BooleanArray>(array).Value(i) ? "true" : "false"; return;
    case Type::UINT8: return append_number(unsigned{as<arrow::UInt8Array>(array).Value(i)}, out);
    case Type::INT8: return append_number(int{as<arrow::Int8Array>(array).Value(i)}, out);
    case Type::UINT16: return append_number(as<arrow::UInt16Array>(array).Value(i), out);
    case Type::INT16: return append_number(as<arrow::Int16Array>(array).Value(i), out);
    case Type::UINT32: return append_number(as<arrow::UInt32Array>(array).Value(i), out);
    case Type::INT32: return append_number(as<arrow::Int32Array>(array).Value(i), out);
    case Type::UINT64: return append_number(as<arrow::UInt64Array>(array).Value(i), out);
    case Type::INT64: return append_number(as<arrow::Int64Array>(array).Value(i), out);
    case Type::HALF_FLOAT: return append_float(arrow::util::Float16::FromBits(as<arrow::HalfFloatArray>(array).Value(i)).ToDouble(), out);
    case Type::FLOAT: return append_float(double{as<arrow::FloatArray>(array).Value(i)}, out);
    case Type::DOUBLE: return append_float(as<arrow::DoubleArray>(array).Value(i), out);
    case Type::STRING: return append_string(as<arrow::StringArray>(array).GetView(i), out);
    case Type::LARGE_STRING: return append_string(as<arrow::LargeStringArray>(array).GetView(i), out);
    case Type::STRING_VIEW: return append_string(as<arrow::StringViewArray>(array).GetView(i), out);
    case Type::BINARY: return append_bytes(as<arrow::BinaryArray>(array).GetView(i), out);
    case Type::LARGE_BINARY: return append_bytes(as<arrow::LargeBinaryArray>(array).GetView(i), out);
    case Type::BINARY_VIEW: return append_bytes(as<arrow::BinaryViewArray>(array).GetView(i), out);
    case Type::FIXED_SIZE_BINARY: return append_bytes(as<arrow::FixedSizeBinaryArray>(array).GetView(i), out);
    case Type::DATE32:
    case Type::DATE64:
      out += '"';
      append_day(array.type_id() == Type::DATE32 ? int64_t{as<arrow::Date32Array>(array).Value(i)}
                                                 : divided_down(as<arrow::Date64Array>(array).Value(i), 86'400'000),
                 out);
      out += '"';
      return;
    case Type::TIMESTAMP:
      return append_time(static_cast<const arrow::TimestampType&>(*array.type()), as<arrow::TimestampArray>(array).Value(i), out);
    case Type::LIST: return append_list(as<arrow::ListArray>(array), i, out);
    case Type::LARGE_LIST: return append_list(as<arrow::LargeListArray>(array), i, out);
    case Type::FIXED_SIZE_LIST: return append_list(as<arrow::FixedSizeListArray>(array), i, out);
    case Type::STRUCT: return append_struct(as<arrow::StructArray>(array), i, out);
    case Type::DICTIONARY: return append_dictionary(as<arrow::DictionaryArray>(array), i, out);
    case Type::EXTENSION: return append_json(*as<arrow::ExtensionArray>(array).storage(), i, out);
    default: throw std::runtime_error("it is of the type " + array.type()->ToString());  // require_json has refused it
  }
}

}  // namespace ingot::data::parquet
