// Python's pickles as plain data: nothing is imported and nothing is called. Where Python would call a class or a function,
// the reader keeps a node "object of class X with these arguments and this state", and the caller takes from it what it knows.
// Reads protocols 2 to 5 (the binary opcodes; the text opcodes of protocols 0 and 1 are refused), writes protocol 2.
// Format: Python's Lib/pickletools.py. The bytes are hostile: the reader does not recurse, and what it allocates is a small
// multiple of their number. Every fault is a CheckpointError that names the file and the byte.
//
// A Pickle is a plain value once it is made and may be read by many threads; values must not outlive it.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ingot::interchange {

enum class PickleKind : uint8_t {
  none,
  boolean,
  integer,        // fits 64 bits
  large_integer,  // does not; its bytes are kept
  real,
  text,
  bytes,
  list,
  tuple,
  dict,
  set,
  global,     // a class or function by name
  object,     // what a call would have made
  persistent  // what the program that wrote it keeps elsewhere: torch's storages
};

class Pickle;

/// One value of a pickle. Accessors throw CheckpointError naming file and byte when the value is of another kind.
class PickleValue {
 public:
  PickleValue(const Pickle& pickle, uint32_t node) : pickle_(&pickle), node_(node) {}

  PickleKind kind() const;
  bool is(PickleKind kind) const { return this->kind() == kind; }
  bool is_none() const { return is(PickleKind::none); }
  bool boolean() const;
  int64_t integer() const;
  double real() const;
  /// UTF-8 as a rule, but not checked.
  std::string_view text() const;
  std::string_view bytes() const;

  /// Items of a list, tuple or set; pairs of a dict. Of an object: what was appended to it or set in it.
  size_t size() const;
  PickleValue operator[](size_t i) const;
  std::pair<PickleValue, PickleValue> pair(size_t i) const;
  /// Whether an object was filled as a dict is, such as OrderedDict.
  bool has_pairs() const;
  /// The value of a text key of a dict, or of an object filled as one.
  std::optional<PickleValue> find(std::string_view key) const;
  PickleValue at(std::string_view key) const;

  /// "module.name" of a global, or of what would have been called to make an object.
  std::string class_name() const;
  std::string_view module() const;
  std::string_view name() const;
  /// Of an object: what is called, with which tuple, and the state set afterwards (absent: none was).
  PickleValue callable() const;
  PickleValue args() const;
  std::optional<PickleValue> keywords() const;
  std::optional<PickleValue> state() const;
  /// Of a persistent value.
  PickleValue id() const;

  /// Size of the pickle it is part of.
  size_t pickle_bytes() const;
  /// Throws CheckpointError "<file>, byte <n>: <what>".
  [[noreturn]] void fail(const std::string& what) const;

 private:
  PickleValue child(uint32_t node) const { return {*pickle_, node}; }
  const Pickle* pickle_;
  uint32_t node_;
};

class Pickle {
 public:
  /// `origin` is the file's name in messages. One pickle must fill all the bytes, of which there may be 2^31.
  Pickle(std::string bytes, std::string origin);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  PickleValue root() const { return {*this, root_}; }
  const std::string& origin() const { return origin_; }
  /// Number of values, which is at most three for two bytes.
  size_t node_count() const { return nodes_.size(); }

 private:
  friend class PickleValue;
  friend class PickleParser;
  struct Node {
    PickleKind kind = PickleKind::none;
    bool pairs = false;   // an object filled as a dict
    uint32_t offset = 0;  // where in the bytes it was made
    union {
      int64_t integer = 0;
      double real;
      struct {
        uint32_t begin, size;  // of text, bytes, large_integer within the bytes
      } range;
    };
    // Items; keys and values in turn; module and name of a global; the id of a persistent; callable, args, keywords, state
    // and then the items of an object.
    std::vector<uint32_t> children;
  };
  std::string bytes_, origin_;
  std::vector<Node> nodes_;
  uint32_t root_ = 0;
};

/// A look at a value for people: tuples and lists are arrays; dicts with text keys are objects; whatever JSON has no word for
/// is an object with one key that begins with '!': {"!class": "torch.Size", "args": [[2, 3]]}. Values nested deeper than
/// `depth_limit` are cut ("!cut"). Throws CheckpointError when the result would be many times larger than the pickle, which shared
/// or cyclic parts can make it.
nlohmann::json to_json(const PickleValue& value, int depth_limit = 64);

/// Writes a pickle of protocol 2 by its opcodes: each function pushes a value on the reader's stack or makes one of those on top
/// of it. Modules and names of globals are written once and referred to afterwards.
class PickleWriter {
 public:
  PickleWriter();
  PickleWriter& none();
  PickleWriter& boolean(bool value);
  PickleWriter& integer(int64_t value);
  PickleWriter& text(std::string_view value);
  /// Written once and referred to afterwards; costs memory here and in the reader.
  PickleWriter& shared_text(const std::string& value);
  /// As Python 3 writes bytes in protocol 2: _codecs.encode(text, 'latin1').
  PickleWriter& bytes(std::string_view value);
  PickleWriter& global(const std::string& module, const std::string& name);

  PickleWriter& mark();
  PickleWriter& tuple();  // of all after the mark
  PickleWriter& empty_tuple();
  PickleWriter& empty_list();
  PickleWriter& append_all();  // all after the mark, to the list before it
  PickleWriter& empty_dict();
  PickleWriter& set_all();     // keys and values after the mark, in the dict before it
  PickleWriter& reduce();      // callable, tuple -> object
  PickleWriter& new_object();  // class, tuple -> object
  PickleWriter& build();       // object, state -> object
  PickleWriter& persistent();  // id -> value

  /// torch.Size and other tuples of integers.
  PickleWriter& integers(const std::vector<int64_t>& values);

  /// Ends the pickle.
  std::string finish();

 private:
  bool recall(const std::string& key);    // pushes what was remembered under the key, if it was
  void remember(const std::string& key);  // the top of the stack
  PickleWriter& opcode(char code);
  void little_endian(uint64_t value, int bytes);
  std::string out_;
  std::map<std::string, uint32_t> memo_;
};

}  // namespace ingot::interchange
