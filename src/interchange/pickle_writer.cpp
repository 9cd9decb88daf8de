#include "base/error.h"
#include "interchange/pickle.h"

namespace ingot::interchange {

PickleWriter::PickleWriter() : out_("\x80\x02") {}

PickleWriter& PickleWriter::opcode(char code) {
  out_ += code;
  return *this;
}

void PickleWriter::little_endian(uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i));
}

bool PickleWriter::recall(const std::string& key) {
  const auto found = memo_.find(key);
  if (found == memo_.end()) return false;
  opcode(found->second < 256 ? 'h' : 'j');
  little_endian(found->second, found->second < 256 ? 1 : 4);
  return true;
}

void PickleWriter::remember(const std::string& key) {
  const auto index = static_cast<uint32_t>(memo_.size());
  memo_.emplace(key, index);
  opcode(index < 256 ? 'q' : 'r');
  little_endian(index, index < 256 ? 1 : 4);
}

PickleWriter& PickleWriter::none() { return opcode('N'); }
PickleWriter& PickleWriter::boolean(bool value) { return opcode(value ? '\x88' : '\x89'); }

PickleWriter& PickleWriter::integer(int64_t value) {
  if (value >= 0 && value < 256) {
    opcode('K');
    little_endian(static_cast<uint64_t>(value), 1);
  } else if (value >= INT32_MIN && value <= INT32_MAX) {
    opcode('J');
    little_endian(static_cast<uint64_t>(value), 4);
  } else {
    opcode('\x8a');
    little_endian(8, 1);
    little_endian(static_cast<uint64_t>(value), 8);
  }
  return *this;
}

PickleWriter& PickleWriter::text(std::string_view value) {
  if (value.size() > UINT32_MAX) throw base::CheckpointError("a text of {} bytes is too long for a pickle of protocol 2", value.size());
  opcode('X');
  little_endian(value.size(), 4);
  out_ += value;
  return *this;
}

PickleWriter& PickleWriter::shared_text(const std::string& value) {
  const std::string key = "t" + value;
  if (recall(key)) return *this;
  text(value);
  remember(key);
  return *this;
}

PickleWriter& PickleWriter::bytes(std::string_view value) {
  std::string utf8;
  for (const char byte : value) {
    const auto code = static_cast<unsigned char>(byte);
    if (code < 0x80) {
      utf8 += byte;
    } else {
      utf8 += static_cast<char>(0xc0 | code >> 6);
      utf8 += static_cast<char>(0x80 | (code & 0x3f));
    }
  }
  return global("_codecs", "encode").mark().text(utf8).shared_text("latin1").tuple().reduce();
}

PickleWriter& PickleWriter::global(const std::string& module, const std::string& name) {
  const std::string key = "g" + module + "\n" + name;
  if (recall(key)) return *this;
  opcode('c');
  out_ += module + "\n" + name + "\n";
  remember(key);
  return *this;
}

PickleWriter& PickleWriter::mark() { return opcode('('); }
PickleWriter& PickleWriter::tuple() { return opcode('t'); }
PickleWriter& PickleWriter::empty_tuple() { return opcode(')'); }
PickleWriter& PickleWriter::empty_list() { return opcode(']'); }
PickleWriter& PickleWriter::append_all() { return opcode('e'); }
PickleWriter& PickleWriter::empty_dict() { return opcode('}'); }
PickleWriter& PickleWriter::set_all() { return opcode('u'); }
PickleWriter& PickleWriter::reduce() { return opcode('R'); }
PickleWriter& PickleWriter::new_object() { return opcode('\x81'); }
PickleWriter& PickleWriter::build() { return opcode('b'); }
PickleWriter& PickleWriter::persistent() { return opcode('Q'); }

PickleWriter& PickleWriter::integers(const std::vector<int64_t>& values) {
  mark();
  for (const int64_t value : values) integer(value);
  return tuple();
}

std::string PickleWriter::finish() {
  opcode('.');
  return std::move(out_);
}

}  // namespace ingot::interchange
