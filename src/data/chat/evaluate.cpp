#include "data/chat/evaluate.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "data/chat/functions.h"
#include "data/chat/pieces.h"

namespace ingot::data::chat {
namespace {

using base::DataError;

constexpr int64_t kMostSteps = 5'000'000, kDeepest = 120;
constexpr size_t kLongestText = size_t{64} << 20;

enum class Flow { on, stop, next };

class Evaluation {
 public:
  Evaluation(const Dict& variables, bool strict) : strict_(strict) {
    scopes_.emplace_back();
    for (const auto& [name, value] : variables) scopes_.front()[name] = value;
    for (const auto& [name, function] : global_functions()) scopes_.front().emplace(name, function);
    scopes_.emplace_back();
  }

  Rendered run(const Body& body) {
    execute(body);
    return std::move(rendered_);
  }

 private:
  using Scope = std::map<std::string, Value>;

  void step(int line) {
    if (++steps_ > kMostSteps) fail(line, "the template runs on and on");
    if (rendered_.text.size() > kLongestText)
      fail(line, "the template prints more than {}", base::format_bytes(static_cast<int64_t>(kLongestText)));
  }

  // ---- statements ----

  Flow execute(const Body& body) {
    for (const auto& statement : body)
      if (const auto flow = execute(*statement); flow != Flow::on) return flow;
    return Flow::on;
  }

  Flow execute(const Statement& s) {
    step(s.line);
    switch (s.kind) {
      case Statement::Kind::text: rendered_.text += s.text; return Flow::on;
      case Statement::Kind::output: {
        const auto value = value_of(*s.expression);
        if (strict_ && value.is_undefined()) fail(s.line, "'{}' is undefined", value.undefined_name());
        rendered_.text += value.text();
        return Flow::on;
      }
      case Statement::Kind::branch:
        for (const auto& [condition, body] : s.branches)
          if (!condition || value_of(*condition).truth()) return execute(body);
        return Flow::on;
      case Statement::Kind::loop: return loop(s);
      case Statement::Kind::assign: assign(s, s.names, value_of(*s.expression)); return Flow::on;
      case Statement::Kind::capture: {
        assign(s, s.names, captured(s.body));
        return Flow::on;
      }
      case Statement::Kind::macro: define(s); return Flow::on;
      case Statement::Kind::generation: {
        const size_t from = rendered_.text.size();
        const auto flow = execute(s.body);
        if (rendered_.text.size() > from) rendered_.generated.emplace_back(from, rendered_.text.size());
        return flow;
      }
      case Statement::Kind::stop: return Flow::stop;
      case Statement::Kind::next: return Flow::next;
    }
    return Flow::on;
  }

  std::string captured(const Body& body) {
    Rendered own;
    std::swap(own, rendered_);
    execute(body);
    std::swap(own, rendered_);
    return std::move(own.text);
  }

  void assign(const Statement& s, const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) return assign_one(s, names[0], value);
    if (!value.is_list() || value.list().size() != names.size())
      fail(s.line, "{} cannot be shared out to {} names", value.kind(), names.size());
    for (size_t i = 0; i < names.size(); ++i) assign_one(s, names[i], value.list()[i]);
  }

  void assign_one(const Statement& s, const std::string& name, const Value& value) {
    const auto dot = name.find('.');
    if (dot == std::string::npos) {
      scopes_.back()[name] = value;
      return;
    }
    const auto* space = find(name.substr(0, dot));
    if (!space || !space->is_dict()) fail(s.line, "{} is no namespace", name.substr(0, dot));
    space->put(name.substr(dot + 1), value);
  }

  Flow loop(const Statement& s) {
    const auto all = value_of(*s.expression);
    List items = elements_of(all, s.line);
    scopes_.emplace_back();
    if (s.condition) {
      List chosen;
      for (const auto& item : items) {
        assign(s, s.names, item);
        if (value_of(*s.condition).truth()) chosen.push_back(item);
      }
      items = std::move(chosen);
    }
    const auto count = static_cast<int64_t>(items.size());
    for (int64_t i = 0; i < count; ++i) {
      step(s.line);
      scopes_.back().clear();
      const auto at = [&](int64_t index) {
        return index >= 0 && index < count ? items[static_cast<size_t>(index)] : Value(Value::Undefined{"loop item"});
      };
      scopes_.back()["loop"] = Dict{{"index", i + 1},
                                    {"index0", i},
                                    {"first", i == 0},
                                    {"last", i + 1 == count},
                                    {"length", count},
                                    {"revindex", count - i},
                                    {"revindex0", count - i - 1},
                                    {"previtem", at(i - 1)},
                                    {"nextitem", at(i + 1)}};
      assign(s, s.names, items[static_cast<size_t>(i)]);
      if (execute(s.body) == Flow::stop) break;
    }
    scopes_.pop_back();
    return items.empty() ? execute(s.otherwise) : Flow::on;
  }

  // A macro sees its arguments and what the template's outermost level has.
  void define(const Statement& s) {
    const Function call = [this, &s](const Arguments& given) -> Value {
      if (++depth_ > kDeepest) fail(s.line, "macros call one another deeper than {}", kDeepest);
      std::vector<Scope> own = {scopes_[0], scopes_[1], {}};
      std::swap(own, scopes_);
      for (size_t i = 0; i < s.takes.size(); ++i) {
        const auto& [name, otherwise] = s.takes[i];
        const auto* value = given.get(i, name);
        scopes_.back()[name] = value ? *value : otherwise ? value_of(*otherwise) : Value(Value::Undefined{name});
      }
      auto text = captured(s.body);
      std::swap(own, scopes_);
      --depth_;
      return text;
    };
    scopes_.back()[s.text] = call;
  }

  // ---- expressions ----

  const Value* find(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      if (const auto found = scope->find(name); found != scope->end()) return &found->second;
    return nullptr;
  }

  List elements_of(const Value& value, int line) const {
    if (value.is_list()) return value.list();
    if (strict_ && value.is_undefined()) fail(line, "'{}' is undefined", value.undefined_name());
    if (value.is_undefined()) return {};
    List items;
    if (value.is_dict()) {
      for (const auto& [key, _] : value.dict()) items.emplace_back(key);
    } else if (value.is_string()) {
      for (const char32_t c : code_points(value.string())) items.emplace_back(utf8({c}));
    } else {
      fail(line, "{} has no elements to go through", value.kind());
    }
    return items;
  }

  Value value_of(const Expression& e) {
    step(e.line);
    switch (e.kind) {
      case Expression::Kind::literal: return e.literal;
      case Expression::Kind::name: {
        const auto* value = find(e.text);
        return value ? *value : Value(Value::Undefined{e.text});
      }
      case Expression::Kind::list: {
        List list;
        for (const auto& part : e.parts) list.push_back(value_of(*part));
        return list;
      }
      case Expression::Kind::dict: {
        Value dict = Dict{};
        for (size_t i = 0; i < e.parts.size(); i += 2) dict.put(value_of(*e.parts[i]).text(), value_of(*e.parts[i + 1]));
        return dict;
      }
      case Expression::Kind::attribute: return attribute(e, value_of(*e.parts[0]), e.text);
      case Expression::Kind::subscript: return subscript(e);
      case Expression::Kind::slice: return slice(e);
      case Expression::Kind::call: return call(e);
      case Expression::Kind::filter: return with_line(e, [&] { return apply_filter(e.text, value_of(*e.parts[0]), arguments_of(e, 1)); });
      case Expression::Kind::test:
        return with_line(e, [&] { return Value(passes_test(e.text, value_of(*e.parts[0]), arguments_of(e, 1))); });
      case Expression::Kind::negative: {
        const auto value = value_of(*e.parts[0]);
        if (!value.is_number()) fail(e.line, "{} has no negative", value.kind());
        return value.is_float() ? Value(-value.number()) : Value(-value.integer());
      }
      case Expression::Kind::invert: return !value_of(*e.parts[0]).truth();
      case Expression::Kind::both: {
        auto first = value_of(*e.parts[0]);
        return first.truth() ? value_of(*e.parts[1]) : first;
      }
      case Expression::Kind::either: {
        auto first = value_of(*e.parts[0]);
        return first.truth() ? first : value_of(*e.parts[1]);
      }
      case Expression::Kind::binary: return binary(e, value_of(*e.parts[0]), value_of(*e.parts[1]));
      case Expression::Kind::compare: {
        auto left = value_of(*e.parts[0]);
        for (size_t i = 0; i < e.operators.size(); ++i) {
          auto right = value_of(*e.parts[i + 1]);
          if (!compare(e, e.operators[i], left, right)) return false;
          left = std::move(right);
        }
        return true;
      }
      case Expression::Kind::conditional:
        if (value_of(*e.parts[1]).truth()) return value_of(*e.parts[0]);
        return e.parts[2] ? value_of(*e.parts[2]) : Value(Value::Undefined{"a value without else"});
    }
    return {};
  }

  template <class Make>
  Value with_line(const Expression& e, const Make& make) {
    try {
      return make();
    } catch (const DataError& error) {
      const std::string what = error.what();
      if (what.starts_with("line ")) throw;
      fail(e.line, "{}", what);
    }
  }

  Arguments arguments_of(const Expression& e, size_t from) {
    Arguments arguments;
    for (size_t i = from; i < e.parts.size(); ++i) arguments.positional.push_back(value_of(*e.parts[i]));
    for (const auto& [name, part] : e.named) arguments.named.emplace_back(name, value_of(*part));
    return arguments;
  }

  Value attribute(const Expression& e, const Value& of, const std::string& name) {
    if (of.is_undefined()) fail(e.line, "'{}' is undefined, and has no '{}'", of.undefined_name(), name);
    if (const auto* member = of.find(name)) return *member;
    return Value::Undefined{name};
  }

  Value subscript(const Expression& e) {
    const auto of = value_of(*e.parts[0]), at = value_of(*e.parts[1]);
    if (of.is_undefined()) fail(e.line, "'{}' is undefined, and has no [{}]", of.undefined_name(), at.repr());
    if (of.is_dict()) return at.is_string() ? attribute(e, of, at.string()) : Value(Value::Undefined{at.repr()});
    if (!at.is_integer() || !(of.is_list() || of.is_string())) return Value::Undefined{at.text()};
    const auto points = of.is_string() ? code_points(of.string()) : std::u32string();
    const auto count = static_cast<int64_t>(of.is_list() ? of.list().size() : points.size());
    const int64_t index = at.integer() < 0 ? at.integer() + count : at.integer();
    if (index < 0 || index >= count) return Value::Undefined{"element " + at.text()};
    return of.is_list() ? of.list()[static_cast<size_t>(index)] : Value(utf8({points[static_cast<size_t>(index)]}));
  }

  Value slice(const Expression& e) {
    const auto of = value_of(*e.parts[0]);
    if (!of.is_list() && !of.is_string()) fail(e.line, "{} cannot be cut by [:]", of.kind());
    const auto points = of.is_string() ? code_points(of.string()) : std::u32string();
    const auto count = static_cast<int64_t>(of.is_list() ? of.list().size() : points.size());
    const auto bound = [&](size_t part) -> std::optional<int64_t> {
      if (!e.parts[part]) return std::nullopt;
      const auto value = value_of(*e.parts[part]);
      if (value.is_none()) return std::nullopt;
      if (!value.is_integer()) fail(e.line, "[:] takes whole numbers, not {}", value.kind());
      return value.integer();
    };
    const auto first = bound(1), last = bound(2);
    const int64_t stride = bound(3).value_or(1);
    if (stride == 0) fail(e.line, "a slice cannot have steps of 0");
    const auto placed = [&](int64_t at) {
      return std::clamp(at < 0 ? at + count : at, stride > 0 ? int64_t{0} : int64_t{-1}, stride > 0 ? count : count - 1);
    };
    const int64_t begin = first ? placed(*first) : stride > 0 ? 0 : count - 1, end = last ? placed(*last) : stride > 0 ? count : -1;
    List list;
    std::u32string text;
    for (int64_t i = begin; stride > 0 ? i < end : i > end; i += stride)
      if (of.is_list()) list.push_back(of.list()[static_cast<size_t>(i)]);
      else text += points[static_cast<size_t>(i)];
    return of.is_list() ? Value(std::move(list)) : Value(utf8(text));
  }

  Value call(const Expression& e) {
    const auto& what = *e.parts[0];
    if (what.kind == Expression::Kind::attribute) {
      const auto of = value_of(*what.parts[0]);
      const auto* member = of.find(what.text);
      if (member && member->is_function()) return with_line(e, [&] { return member->function()(arguments_of(e, 1)); });
      if (of.is_undefined()) fail(e.line, "'{}' is undefined, and has no '{}'", of.undefined_name(), what.text);
      return with_line(e, [&] { return call_method(of, what.text, arguments_of(e, 1)); });
    }
    const auto function = value_of(what);
    if (function.is_undefined()) fail(e.line, "there is no function '{}' here", function.undefined_name());
    if (!function.is_function()) fail(e.line, "{} cannot be called", function.kind());
    return with_line(e, [&] { return function.function()(arguments_of(e, 1)); });
  }

  Value binary(const Expression& e, const Value& a, const Value& b) {
    const auto& op = e.text;
    if (op == "~") return a.text() + b.text();
    if (op == "+" && a.is_string() && b.is_string()) return a.string() + b.string();
    if (op == "+" && a.is_list() && b.is_list()) {
      auto list = a.list();
      list.insert(list.end(), b.list().begin(), b.list().end());
      return list;
    }
    if (op == "*" && a.is_string() && b.is_integer()) {
      std::string text;
      if (b.integer() > 0 && a.string().size() > kLongestText / static_cast<size_t>(b.integer())) fail(e.line, "a text becomes too long");
      for (int64_t i = 0; i < b.integer(); ++i) text += a.string();
      return text;
    }
    if (!a.is_number() || !b.is_number()) {
      const auto named = [](const Value& v) {
        return v.is_undefined() ? fmt::format("'{}', which is undefined,", v.undefined_name()) : v.kind();
      };
      fail(e.line, "{} and {} have no '{}'", named(a), named(b), op);
    }
    if ((op == "/" || op == "//" || op == "%") && b.number() == 0) fail(e.line, "division by 0");
    if (op == "/") return a.number() / b.number();
    if (a.is_float() || b.is_float()) {
      const double x = a.number(), y = b.number();
      if (op == "+") return x + y;
      if (op == "-") return x - y;
      if (op == "*") return x * y;
      const double quotient = std::floor(x / y);
      return op == "//" ? quotient : x - quotient * y;
    }
    const int64_t x = a.integer(), y = b.integer();
    int64_t result = 0;
    const bool overflows = op == "+"   ? __builtin_add_overflow(x, y, &result)
                           : op == "-" ? __builtin_sub_overflow(x, y, &result)
                           : op == "*" ? __builtin_mul_overflow(x, y, &result)
                                       : (y == -1 && x == INT64_MIN);
    if (overflows) fail(e.line, "a number becomes too large");
    if (op == "+" || op == "-" || op == "*") return result;
    const int64_t quotient = x / y - ((x % y != 0) && ((x < 0) != (y < 0)) ? 1 : 0);
    return op == "//" ? quotient : x - quotient * y;
  }

  bool compare(const Expression& e, const std::string& op, const Value& a, const Value& b) {
    if (op == "==") return a.equals(b);
    if (op == "!=") return !a.equals(b);
    if (op == "in" || op == "not in") return with_line(e, [&] { return Value(is_in(a, b)); }).truth() == (op == "in");
    int order = 0;
    if (a.is_number() && b.is_number()) order = a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : 0;
    else if (a.is_string() && b.is_string()) order = a.string().compare(b.string());
    else fail(e.line, "{} and {} have no order", a.kind(), b.kind());
    return op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
  }

  std::vector<Scope> scopes_;  // what the template is given, its outermost level, then those of loops
  Rendered rendered_;
  const bool strict_;
  int64_t steps_ = 0, depth_ = 0;
};

}  // namespace

Rendered evaluate(const Body& body, const Dict& variables, bool strict) { return Evaluation(variables, strict).run(body); }

}  // namespace ingot::data::chat
