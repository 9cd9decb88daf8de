#include "interchange/pickle.h"

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace ingot::interchange {

using base::CheckpointError;

namespace {

constexpr uint32_t kAbsent = UINT32_MAX;
constexpr size_t kLimitBytes = size_t{1} << 31;  // so that 32 bits count bytes and values
// Children of an object before its items.
constexpr size_t kCallable = 0, kArgs = 1, kKeywords = 2, kState = 3, kObjectHead = 4;

const char* name_of(PickleKind kind) {
  constexpr const char* kNames[] = {"None",   "a bool",  "an integer", "a large integer", "a float",      "a text",    "bytes",
                                    "a list", "a tuple", "a dict",     "a set",           "a class name", "an object", "a persistent id"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

// The stack machine. Python's marks are positions in one stack: what lies below the newest is out of reach.
class PickleParser {
 public:
  explicit PickleParser(Pickle& pickle) : pickle_(pickle), bytes_(pickle.bytes_) {}

  uint32_t run() {
    while (true) {
      opcode_at_ = at_;
      const auto opcode = static_cast<unsigned char>(take(1)[0]);
      if (opcode == '.') break;
      step(opcode);
    }
    if (stack_.size() != 1 || !marks_.empty()) fail("the pickle ends with more or less than one value");
    if (at_ != bytes_.size()) fail(fmt::format("{} bytes follow the end of the pickle", bytes_.size() - at_));
    return stack_[0];
  }

 private:
  using Node = Pickle::Node;

  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError("{}, byte {}: {}; the file is damaged or not what it seems", pickle_.origin_, opcode_at_, what);
  }

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) fail(fmt::format("{} bytes should follow, but there are {}", count, bytes_.size() - at_));
    const auto part = bytes_.substr(at_, count);
    at_ += count;
    return part;
  }
  uint64_t number(int count) {
    uint64_t value = 0;
    const auto part = take(static_cast<uint64_t>(count));
    for (int i = count; i-- > 0;) value = value << 8 | static_cast<unsigned char>(part[static_cast<size_t>(i)]);
    return value;
  }
  std::string_view line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail("a line has no end");
    const auto text = take(end - at_);
    take(1);
    return text;
  }

  Node& node(uint32_t index) { return pickle_.nodes_[index]; }
  size_t fence() const { return marks_.empty() ? 0 : marks_.back(); }
  void need(size_t values) const {
    if (stack_.size() - fence() < values) fail("the stack has too few values");
  }
  uint32_t pop() {
    need(1);
    const uint32_t top = stack_.back();
    stack_.pop_back();
    return top;
  }
  uint32_t top() const {
    need(1);
    return stack_.back();
  }
  std::vector<uint32_t> pop_to_mark() {
    if (marks_.empty()) fail("there is no mark");
    std::vector<uint32_t> values(stack_.begin() + marks_.back(), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return values;
  }

  uint32_t make(PickleKind kind, std::vector<uint32_t> children = {}) {
    Node made;
    made.kind = kind;
    made.offset = static_cast<uint32_t>(opcode_at_);
    made.children = std::move(children);
    pickle_.nodes_.push_back(std::move(made));
    return static_cast<uint32_t>(pickle_.nodes_.size() - 1);
  }
  void push(PickleKind kind, std::vector<uint32_t> children = {}) { stack_.push_back(make(kind, std::move(children))); }
  void push_integer(int64_t value, PickleKind kind = PickleKind::integer) {
    push(kind);
    node(stack_.back()).integer = value;
  }
  uint32_t make_range(PickleKind kind, std::string_view part) {
    const uint32_t made = make(kind);
    node(made).range = {static_cast<uint32_t>(part.data() - bytes_.data()), static_cast<uint32_t>(part.size())};
    return made;
  }
  void push_range(PickleKind kind, std::string_view part) { stack_.push_back(make_range(kind, part)); }

  void push_long(std::string_view part) {
    if (part.size() > 8) return push_range(PickleKind::large_integer, part);
    uint64_t value = !part.empty() && (part.back() & 0x80) ? ~uint64_t{0} : 0;  // two's complement
    for (size_t i = part.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(part[i]);
    push_integer(static_cast<int64_t>(value));
  }
  void push_real() {
    uint64_t bits = 0;
    for (const char byte : take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
    push(PickleKind::real);
    node(stack_.back()).real = std::bit_cast<double>(bits);
  }

  void push_global() {
    const auto module = make_range(PickleKind::text, line());
    const auto name = make_range(PickleKind::text, line());
    push(PickleKind::global, {module, name});
  }
  void push_stack_global() {
    need(2);
    const uint32_t name = pop(), module = pop();
    if (node(module).kind != PickleKind::text || node(name).kind != PickleKind::text) fail("a class name is not made of texts");
    push(PickleKind::global, {module, name});
  }
  // Class or function, arguments, and keywords where there are some.
  void push_object(bool with_keywords) {
    need(with_keywords ? 3 : 2);
    const uint32_t keywords = with_keywords ? pop() : kAbsent, args = pop(), callable = pop();
    if (node(args).kind != PickleKind::tuple) fail("the arguments of a call are not a tuple");
    push(PickleKind::object, {callable, args, keywords, kAbsent});
  }
  void build() {
    need(2);
    const uint32_t state = pop();
    Node& object = node(top());
    if (object.kind != PickleKind::object || object.children[kState] != kAbsent) fail("a state is set of what has none");
    object.children[kState] = state;
  }

  void append(const std::vector<uint32_t>& values) {
    Node& to = node(top());
    const bool object = to.kind == PickleKind::object;
    if (to.kind != PickleKind::list && !(object && !to.pairs)) fail("values are appended to what is no list");
    to.children.insert(to.children.end(), values.begin(), values.end());
  }
  void set(const std::vector<uint32_t>& values) {
    if (values.size() % 2 != 0) fail("a key has no value");
    Node& to = node(top());
    if (to.kind == PickleKind::object && to.children.size() == kObjectHead) to.pairs = true;
    if (to.kind != PickleKind::dict && !(to.kind == PickleKind::object && to.pairs)) fail("keys are set in what is no dict");
    to.children.insert(to.children.end(), values.begin(), values.end());
  }
  void add_to_set(const std::vector<uint32_t>& values) {
    Node& to = node(top());
    if (to.kind != PickleKind::set) fail("values are added to what is no set");
    to.children.insert(to.children.end(), values.begin(), values.end());
  }

  void remember(uint64_t index) {
    if (index > bytes_.size()) fail("a value is remembered under an impossible number");
    if (index >= memo_.size()) memo_.resize(index + 1, kAbsent);
    memo_count_ += memo_[index] == kAbsent;
    memo_[index] = top();
  }
  void recall(uint64_t index) {
    if (index >= memo_.size() || memo_[index] == kAbsent) fail("a value is recalled that was not remembered");
    stack_.push_back(memo_[index]);
  }
  void pop_anything() {
    if (!marks_.empty() && marks_.back() == stack_.size()) {
      marks_.pop_back();
    } else {
      pop();
    }
  }

  std::vector<uint32_t> pop_many(size_t count) {
    need(count);
    std::vector<uint32_t> values(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return values;
  }

  void step(unsigned char opcode) {
    switch (opcode) {
      case 0x80: {  // PROTO
        const uint64_t protocol = number(1);
        if (protocol < 2 || protocol > 5) fail(fmt::format("protocol {} is not one of 2 to 5", protocol));
        return;
      }
      case 0x95: {  // FRAME
        const uint64_t size = number(8);
        if (size > bytes_.size() - at_) fail("a frame is longer than the file");
        return;
      }
      case '(': return marks_.push_back(static_cast<uint32_t>(stack_.size()));
      case '0': return pop_anything();
      case '1': return static_cast<void>(pop_to_mark());
      case '2': return stack_.push_back(top());

      case 'N': return push(PickleKind::none);
      case 0x88: return push_integer(1, PickleKind::boolean);
      case 0x89: return push_integer(0, PickleKind::boolean);
      case 'J': return push_integer(static_cast<int32_t>(number(4)));
      case 'K': return push_integer(static_cast<int64_t>(number(1)));
      case 'M': return push_integer(static_cast<int64_t>(number(2)));
      case 0x8a: return push_long(take(number(1)));
      case 0x8b: return push_long(take(number(4)));
      case 'G': return push_real();

      case 'X': return push_range(PickleKind::text, take(number(4)));
      case 0x8c: return push_range(PickleKind::text, take(number(1)));
      case 0x8d: return push_range(PickleKind::text, take(number(8)));
      case 'T': return push_range(PickleKind::text, take(number(4)));  // a text of Python 2
      case 'U': return push_range(PickleKind::text, take(number(1)));
      case 'B': return push_range(PickleKind::bytes, take(number(4)));
      case 'C': return push_range(PickleKind::bytes, take(number(1)));
      case 0x8e: return push_range(PickleKind::bytes, take(number(8)));
      case 0x96: return push_range(PickleKind::bytes, take(number(8)));  // a bytearray

      case ')': return push(PickleKind::tuple);
      case 't': return push(PickleKind::tuple, pop_to_mark());
      case 0x85: return push(PickleKind::tuple, pop_many(1));
      case 0x86: return push(PickleKind::tuple, pop_many(2));
      case 0x87: return push(PickleKind::tuple, pop_many(3));
      case ']': return push(PickleKind::list);
      case 'l': return push(PickleKind::list, pop_to_mark());
      case 'a': return append(pop_many(1));
      case 'e': return append(pop_to_mark());
      case '}': return push(PickleKind::dict);
      case 'd': {
        std::vector<uint32_t> values = pop_to_mark();
        if (values.size() % 2 != 0) fail("a key has no value");
        return push(PickleKind::dict, std::move(values));
      }
      case 's': return set(pop_many(2));
      case 'u': return set(pop_to_mark());
      case 0x8f: return push(PickleKind::set);
      case 0x90: return add_to_set(pop_to_mark());
      case 0x91: return push(PickleKind::set, pop_to_mark());  // a frozenset

      case 'c': return push_global();
      case 0x93: return push_stack_global();
      case 'R': return push_object(false);
      case 0x81: return push_object(false);
      case 0x92: return push_object(true);
      case 'b': return build();
      case 'Q': return push(PickleKind::persistent, pop_many(1));

      case 'q': return remember(number(1));
      case 'r': return remember(number(4));
      case 0x94: return remember(memo_count_);
      case 'h': return recall(number(1));
      case 'j': return recall(number(4));
      default: fail(fmt::format("the opcode {:#04x} is not one that is read", opcode));
    }
  }

  Pickle& pickle_;
  std::string_view bytes_;
  size_t at_ = 0, opcode_at_ = 0;
  std::vector<uint32_t> stack_, marks_, memo_;
  uint64_t memo_count_ = 0;
};

Pickle::Pickle(std::string bytes, std::string origin) : bytes_(std::move(bytes)), origin_(std::move(origin)) {
  if (bytes_.size() > kLimitBytes) throw CheckpointError("{}: a pickle of {} bytes is not read", origin_, bytes_.size());
  root_ = PickleParser(*this).run();
}

size_t PickleValue::pickle_bytes() const { return pickle_->bytes_.size(); }

PickleKind PickleValue::kind() const { return pickle_->nodes_[node_].kind; }

void PickleValue::fail(const std::string& what) const {
  throw CheckpointError("{}, byte {}: {}", pickle_->origin_, pickle_->nodes_[node_].offset, what);
}

namespace {

void expect(const PickleValue& value, PickleKind kind) {
  if (!value.is(kind)) value.fail(fmt::format("{} is expected, but there is {}", name_of(kind), name_of(value.kind())));
}

}  // namespace

bool PickleValue::boolean() const {
  expect(*this, PickleKind::boolean);
  return pickle_->nodes_[node_].integer != 0;
}

int64_t PickleValue::integer() const {
  expect(*this, PickleKind::integer);
  return pickle_->nodes_[node_].integer;
}

double PickleValue::real() const {
  expect(*this, PickleKind::real);
  return pickle_->nodes_[node_].real;
}

std::string_view PickleValue::text() const {
  expect(*this, PickleKind::text);
  const auto& range = pickle_->nodes_[node_].range;
  return std::string_view(pickle_->bytes_).substr(range.begin, range.size);
}

std::string_view PickleValue::bytes() const {
  if (!is(PickleKind::large_integer)) expect(*this, PickleKind::bytes);
  const auto& range = pickle_->nodes_[node_].range;
  return std::string_view(pickle_->bytes_).substr(range.begin, range.size);
}

size_t PickleValue::size() const {
  const auto& node = pickle_->nodes_[node_];
  switch (node.kind) {
    case PickleKind::list:
    case PickleKind::tuple:
    case PickleKind::set: return node.children.size();
    case PickleKind::dict: return node.children.size() / 2;
    case PickleKind::object: return (node.children.size() - kObjectHead) / (node.pairs ? 2 : 1);
    default: fail(fmt::format("a list or dict is expected, but there is {}", name_of(node.kind)));
  }
}

bool PickleValue::has_pairs() const { return is(PickleKind::dict) || pickle_->nodes_[node_].pairs; }

PickleValue PickleValue::operator[](size_t i) const {
  if (has_pairs() || i >= size()) fail(fmt::format("{} has no item {}", name_of(kind()), i));
  return child(pickle_->nodes_[node_].children[i + (is(PickleKind::object) ? kObjectHead : 0)]);
}

std::pair<PickleValue, PickleValue> PickleValue::pair(size_t i) const {
  if (!has_pairs() || i >= size()) fail(fmt::format("{} has no pair {}", name_of(kind()), i));
  const size_t at = 2 * i + (is(PickleKind::object) ? kObjectHead : 0);
  const auto& children = pickle_->nodes_[node_].children;
  return {child(children[at]), child(children[at + 1])};
}

std::optional<PickleValue> PickleValue::find(std::string_view key) const {
  if (!has_pairs()) expect(*this, PickleKind::dict);
  for (size_t i = 0; i < size(); ++i) {
    const auto [name, value] = pair(i);
    if (name.is(PickleKind::text) && name.text() == key) return value;
  }
  return std::nullopt;
}

PickleValue PickleValue::at(std::string_view key) const {
  const auto found = find(key);
  if (!found) fail(fmt::format("the key '{}' is missing", key));
  return *found;
}

std::string_view PickleValue::module() const {
  const PickleValue named = is(PickleKind::object) ? callable() : *this;
  expect(named, PickleKind::global);
  return child(pickle_->nodes_[named.node_].children[0]).text();
}

std::string_view PickleValue::name() const {
  const PickleValue named = is(PickleKind::object) ? callable() : *this;
  expect(named, PickleKind::global);
  return child(pickle_->nodes_[named.node_].children[1]).text();
}

std::string PickleValue::class_name() const { return fmt::format("{}.{}", module(), name()); }

PickleValue PickleValue::callable() const {
  expect(*this, PickleKind::object);
  return child(pickle_->nodes_[node_].children[kCallable]);
}

PickleValue PickleValue::args() const {
  expect(*this, PickleKind::object);
  return child(pickle_->nodes_[node_].children[kArgs]);
}

std::optional<PickleValue> PickleValue::keywords() const {
  expect(*this, PickleKind::object);
  const uint32_t keywords = pickle_->nodes_[node_].children[kKeywords];
  return keywords == kAbsent ? std::nullopt : std::optional(child(keywords));
}

std::optional<PickleValue> PickleValue::state() const {
  expect(*this, PickleKind::object);
  const uint32_t state = pickle_->nodes_[node_].children[kState];
  return state == kAbsent ? std::nullopt : std::optional(child(state));
}

PickleValue PickleValue::id() const {
  expect(*this, PickleKind::persistent);
  return child(pickle_->nodes_[node_].children[0]);
}

}  // namespace ingot::interchange
