#include "data/chat/syntax.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

#include "base/error.h"
#include "base/text.h"
#include "data/chat/pieces.h"

namespace ingot::data::chat {
namespace {

constexpr int kDeepest = 200;

// ---- words of an expression ----

struct Word {
  enum class Kind { end, name, text, integer, number, sign } kind = Kind::end;
  std::string text;
};

std::vector<Word> words_of(const std::string& source, int line) {
  static constexpr std::array kLong = {"**", "//", "==", "!=", "<=", ">="};
  std::vector<Word> words;
  for (size_t i = 0; i < source.size();) {
    const char c = source[i];
    if (is_space(c)) {
      ++i;
    } else if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_') {
      size_t end = i;
      while (end < source.size() && (std::isalnum(static_cast<unsigned char>(source[end])) != 0 || source[end] == '_')) ++end;
      words.push_back({Word::Kind::name, source.substr(i, end - i)});
      i = end;
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      size_t end = i;
      bool is_float = false;
      while (end < source.size() && (std::isdigit(static_cast<unsigned char>(source[end])) != 0 || source[end] == '_' ||
                                     (source[end] == '.' && !is_float && end + 1 < source.size() &&
                                      std::isdigit(static_cast<unsigned char>(source[end + 1])) != 0))) {
        is_float = is_float || source[end] == '.';
        ++end;
      }
      auto digits = source.substr(i, end - i);
      std::erase(digits, '_');
      if (digits.size() > 18) fail(line, "the number {} is too long", digits);
      words.push_back({is_float ? Word::Kind::number : Word::Kind::integer, digits});
      i = end;
    } else if (c == '"' || c == '\'') {
      std::string text;
      size_t end = i + 1;
      for (; end < source.size() && source[end] != c; ++end) {
        if (source[end] != '\\' || end + 1 >= source.size()) {
          text += source[end];
          continue;
        }
        const char escaped = source[++end];
        if (escaped == 'u' && end + 4 < source.size()) {
          text += utf8({static_cast<char32_t>(std::strtoul(source.substr(end + 1, 4).c_str(), nullptr, 16))});
          end += 4;
        } else if (escaped == 'x' && end + 2 < source.size()) {
          text += utf8({static_cast<char32_t>(std::strtoul(source.substr(end + 1, 2).c_str(), nullptr, 16))});
          end += 2;
        } else if (escaped == 'n') text += '\n';
        else if (escaped == 't') text += '\t';
        else if (escaped == 'r') text += '\r';
        else if (escaped == '\\' || escaped == '"' || escaped == '\'') text += escaped;
        else text += '\\', text += escaped;
      }
      words.push_back({Word::Kind::text, text});
      i = end + 1;
    } else {
      std::string sign(1, c);
      for (const char* two : kLong)
        if (source.compare(i, 2, two) == 0) sign = two;
      if (std::string_view("+-*/%~=<>!()[]{},.:|").find(c) == std::string_view::npos || sign == "!")
        fail(line, "'{}' cannot stand here", c);
      words.push_back({Word::Kind::sign, sign});
      i += sign.size();
    }
  }
  words.push_back({});
  return words;
}

class ExpressionParser {
 public:
  ExpressionParser(const std::string& source, int line) : words_(words_of(source, line)), line_(line) {}

  bool at_end() const { return word().kind == Word::Kind::end; }
  bool is_name(std::string_view name) const { return word().kind == Word::Kind::name && word().text == name; }
  bool is_sign(std::string_view sign) const { return word().kind == Word::Kind::sign && word().text == sign; }
  bool take_sign(std::string_view sign) { return is_sign(sign) && (++at_, true); }
  bool take_name(std::string_view name) { return is_name(name) && (++at_, true); }
  std::string name() {
    if (word().kind != Word::Kind::name) fail(line_, "a name is missing{}", before());
    return words_[at_++].text;
  }
  void expect_sign(std::string_view sign) {
    if (!take_sign(sign)) fail(line_, "'{}' is missing{}", sign, before());
  }
  void expect_name(std::string_view name) {
    if (!take_name(name)) fail(line_, "'{}' is missing{}", name, before());
  }
  void expect_end() const {
    if (!at_end()) fail(line_, "'{}' is too much", word().text);
  }

  /// a, b is a list.
  ExpressionPtr tuple() {
    auto first = expression();
    if (!is_sign(",")) return first;
    auto all = make(Expression::Kind::list);
    all->parts.push_back(std::move(first));
    while (take_sign(",") && !at_end()) all->parts.push_back(expression());
    return all;
  }

  ExpressionPtr expression(bool allows_condition = true) {
    const Deeper deeper(*this);
    auto value = either();
    while (allows_condition && take_name("if")) {
      auto all = make(Expression::Kind::conditional);
      all->parts = {value, either(), take_name("else") ? expression() : nullptr};
      value = all;
    }
    return value;
  }

 private:
  struct Deeper {
    explicit Deeper(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.depth_ > kDeepest) fail(parser_.line_, "expressions lie deeper than {} in one another", kDeepest);
    }
    ~Deeper() { --parser_.depth_; }
    ExpressionParser& parser_;
  };

  const Word& word() const { return words_[at_]; }
  std::string before() const { return at_end() ? "" : " before '" + word().text + "'"; }
  std::shared_ptr<Expression> make(Expression::Kind kind, std::string text = {}) const {
    auto made = std::make_shared<Expression>();
    made->kind = kind, made->line = line_, made->text = std::move(text);
    return made;
  }
  ExpressionPtr two(Expression::Kind kind, std::string text, ExpressionPtr a, ExpressionPtr b) const {
    auto made = make(kind, std::move(text));
    made->parts = {std::move(a), std::move(b)};
    return made;
  }

  ExpressionPtr either() {
    auto value = both();
    while (take_name("or")) value = two(Expression::Kind::either, "or", value, both());
    return value;
  }
  ExpressionPtr both() {
    auto value = invert();
    while (take_name("and")) value = two(Expression::Kind::both, "and", value, invert());
    return value;
  }
  ExpressionPtr invert() {
    const Deeper deeper(*this);
    if (!take_name("not")) return compare();
    auto made = make(Expression::Kind::invert);
    made->parts = {invert()};
    return made;
  }
  ExpressionPtr compare() {
    auto first = sum();
    auto made = make(Expression::Kind::compare);
    made->parts = {first};
    while (true) {
      std::string op;
      for (const char* sign : {"==", "!=", "<=", ">=", "<", ">"})
        if (op.empty() && take_sign(sign)) op = sign;
      if (op.empty() && take_name("in")) op = "in";
      if (op.empty() && is_name("not") && words_[at_ + 1].text == "in" && words_[at_ + 1].kind == Word::Kind::name) at_ += 2, op = "not in";
      if (op.empty()) break;
      made->operators.push_back(op);
      made->parts.push_back(sum());
    }
    return made->operators.empty() ? first : made;
  }
  ExpressionPtr sum() {
    auto value = joined();
    while (is_sign("+") || is_sign("-")) {
      const auto sign = words_[at_++].text;
      value = two(Expression::Kind::binary, sign, value, joined());
    }
    return value;
  }
  ExpressionPtr joined() {
    auto value = product();
    while (take_sign("~")) value = two(Expression::Kind::binary, "~", value, product());
    return value;
  }
  ExpressionPtr product() {
    auto value = unary();
    while (is_sign("*") || is_sign("/") || is_sign("//") || is_sign("%")) {
      const auto sign = words_[at_++].text;
      value = two(Expression::Kind::binary, sign, value, unary());
    }
    return value;
  }
  ExpressionPtr unary() {
    const Deeper deeper(*this);
    if (take_sign("+")) return unary();
    if (take_sign("-")) {
      auto made = make(Expression::Kind::negative);
      made->parts = {unary()};
      return made;
    }
    return filtered(postfix(primary()));
  }

  ExpressionPtr primary() {
    const Word word = words_[at_];
    if (word.kind == Word::Kind::end) fail(line_, "an expression is missing");
    ++at_;
    const auto literal = [&](Value value) {
      auto made = make(Expression::Kind::literal);
      made->literal = std::move(value);
      return made;
    };
    switch (word.kind) {
      case Word::Kind::text: {
        auto text = word.text;
        while (words_[at_].kind == Word::Kind::text) text += words_[at_++].text;  // neighbours are one, as in Python
        return literal(text);
      }
      case Word::Kind::integer: return literal(static_cast<int64_t>(std::stoll(word.text)));
      case Word::Kind::number: return literal(std::strtod(word.text.c_str(), nullptr));
      case Word::Kind::name:
        if (word.text == "true" || word.text == "True") return literal(true);
        if (word.text == "false" || word.text == "False") return literal(false);
        if (word.text == "none" || word.text == "None") return literal(Value());
        return make(Expression::Kind::name, word.text);
      default: break;
    }
    if (word.text == "(") {
      auto made = make(Expression::Kind::list);
      bool is_tuple = false;
      while (!is_sign(")")) {
        made->parts.push_back(expression());
        if (!take_sign(",")) break;
        is_tuple = true;
      }
      expect_sign(")");
      return is_tuple || made->parts.empty() ? ExpressionPtr(made) : made->parts[0];
    }
    if (word.text == "[") {
      auto made = make(Expression::Kind::list);
      while (!is_sign("]")) {
        made->parts.push_back(expression());
        if (!take_sign(",")) break;
      }
      expect_sign("]");
      return made;
    }
    if (word.text == "{") {
      auto made = make(Expression::Kind::dict);
      while (!is_sign("}")) {
        made->parts.push_back(expression());
        expect_sign(":");
        made->parts.push_back(expression());
        if (!take_sign(",")) break;
      }
      expect_sign("}");
      return made;
    }
    fail(line_, "'{}' cannot begin an expression", word.text);
  }

  void arguments(Expression& call) {
    while (!is_sign(")")) {
      if (word().kind == Word::Kind::name && words_[at_ + 1].kind == Word::Kind::sign && words_[at_ + 1].text == "=") {
        auto key = name();
        expect_sign("=");
        call.named.emplace_back(std::move(key), expression());
      } else {
        if (is_sign("*")) fail(line_, "*arguments are not known here");
        call.parts.push_back(expression());
      }
      if (!take_sign(",")) break;
    }
    expect_sign(")");
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    while (true) {
      if (take_sign(".")) {
        auto made = make(Expression::Kind::attribute);
        if (word().kind == Word::Kind::integer) {  // x.0
          made->kind = Expression::Kind::subscript;
          auto index = make(Expression::Kind::literal);
          index->literal = static_cast<int64_t>(std::stoll(words_[at_++].text));
          made->parts = {value, index};
        } else {
          made->text = name();
          made->parts = {value};
        }
        value = made;
      } else if (take_sign("[")) {
        value = subscript(value);
      } else if (take_sign("(")) {
        auto made = make(Expression::Kind::call);
        made->parts = {value};
        arguments(*made);
        value = made;
      } else {
        return value;
      }
    }
  }

  ExpressionPtr subscript(const ExpressionPtr& value) {
    std::array<ExpressionPtr, 3> bounds;
    size_t colons = 0;
    if (!is_sign(":")) bounds[0] = expression();
    while (colons < 2 && take_sign(":")) {
      ++colons;
      if (!is_sign(":") && !is_sign("]")) bounds[colons] = expression();
    }
    expect_sign("]");
    auto made = make(colons > 0 ? Expression::Kind::slice : Expression::Kind::subscript);
    made->parts = {value, bounds[0]};
    if (colons > 0) made->parts.insert(made->parts.end(), {bounds[1], bounds[2]});
    return made;
  }

  ExpressionPtr filtered(ExpressionPtr value) {
    while (true) {
      if (take_sign("|")) {
        auto made = make(Expression::Kind::filter, name());
        made->parts = {value};
        if (take_sign("(")) arguments(*made);
        value = postfix(made);
      } else if (take_name("is")) {
        const bool inverts = take_name("not");
        auto made = make(Expression::Kind::test, name());
        made->parts = {value};
        const bool has_argument = word().kind == Word::Kind::text || word().kind == Word::Kind::integer || is_sign("[") ||
                                  (word().kind == Word::Kind::name && !is_name("and") && !is_name("or") && !is_name("else") &&
                                   !is_name("if") && !is_name("is") && !is_name("not") && !is_name("in"));
        if (take_sign("(")) arguments(*made);
        else if (has_argument) made->parts.push_back(postfix(primary()));
        value = made;
        if (!inverts) continue;
        auto inverted = make(Expression::Kind::invert);
        inverted->parts = {value};
        value = inverted;
      } else {
        return value;
      }
    }
  }

  std::vector<Word> words_;
  size_t at_ = 0;
  int line_, depth_ = 0;
};

// ---- statements ----

class Parser {
 public:
  explicit Parser(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}

  Body run() {
    auto body = until({});
    return body;
  }

 private:
  std::shared_ptr<Statement> make(Statement::Kind kind, int line) const {
    auto made = std::make_shared<Statement>();
    made->kind = kind, made->line = line;
    return made;
  }

  static std::string keyword_of(const Piece& piece) {
    const auto words = words_of(piece.content, piece.line);
    return words.front().kind == Word::Kind::name ? words.front().text : "";
  }

  // Statements up to one of these keywords, which stays; none: to the end.
  Body until(const std::vector<std::string>& ends) {
    if (++depth_ > kDeepest) fail(pieces_[at_].line, "blocks lie deeper than {} in one another", kDeepest);
    Body body;
    const int from = at_ < pieces_.size() ? pieces_[at_].line : 0;
    while (at_ < pieces_.size()) {
      const auto& piece = pieces_[at_];
      if (piece.kind == Piece::Kind::text) {
        auto made = make(Statement::Kind::text, piece.line);
        made->text = piece.content;
        body.push_back(std::move(made));
        ++at_;
      } else if (piece.kind == Piece::Kind::output) {
        ExpressionParser parser(piece.content, piece.line);
        auto made = make(Statement::Kind::output, piece.line);
        made->expression = parser.tuple();
        parser.expect_end();
        body.push_back(std::move(made));
        ++at_;
      } else {
        const auto keyword = keyword_of(piece);
        if (std::find(ends.begin(), ends.end(), keyword) != ends.end()) {
          --depth_;
          return body;
        }
        ++at_;
        body.push_back(statement(keyword, piece));
      }
    }
    if (!ends.empty()) fail(from, "a block before this place is not closed: {} is missing", ends.back());
    --depth_;
    return body;
  }

  // The keyword's piece, taken; its content after the keyword.
  ExpressionParser take(const std::string& keyword) {
    const auto& piece = pieces_[at_++];
    ExpressionParser parser(piece.content, piece.line);
    parser.expect_name(keyword);
    return parser;
  }

  std::shared_ptr<const Statement> statement(const std::string& keyword, const Piece& piece) {
    ExpressionParser parser(piece.content, piece.line);
    if (!keyword.empty()) parser.name();
    if (keyword == "if") return branch(parser, piece.line);
    if (keyword == "for") return loop(parser, piece.line);
    if (keyword == "set") return assign(parser, piece.line);
    if (keyword == "macro") return macro(parser, piece.line);
    if (keyword == "generation") {
      auto made = make(Statement::Kind::generation, piece.line);
      made->body = until({"endgeneration"});
      take("endgeneration");
      return made;
    }
    if (keyword == "break" || keyword == "continue")
      return make(keyword == "break" ? Statement::Kind::stop : Statement::Kind::next, piece.line);
    fail(piece.line, "the statement '{}' is not known here; if, for, set, macro, generation, break and continue are", keyword);
  }

  std::shared_ptr<const Statement> branch(ExpressionParser& parser, int line) {
    auto made = make(Statement::Kind::branch, line);
    auto condition = parser.tuple();
    parser.expect_end();
    while (true) {
      auto body = until({"elif", "else", "endif"});
      made->branches.emplace_back(std::move(condition), std::move(body));
      const auto keyword = keyword_of(pieces_[at_]);
      auto next = take(keyword);
      if (keyword == "endif") return made;
      if (keyword == "else") {
        made->branches.emplace_back(nullptr, until({"endif"}));
        take("endif");
        return made;
      }
      condition = next.tuple();
      next.expect_end();
    }
  }

  std::shared_ptr<const Statement> loop(ExpressionParser& parser, int line) {
    auto made = make(Statement::Kind::loop, line);
    do made->names.push_back(parser.name());
    while (parser.take_sign(","));
    parser.expect_name("in");
    made->expression = parser.expression(/*allows_condition=*/false);
    if (parser.take_name("if")) made->condition = parser.expression();
    if (parser.is_name("recursive")) fail(line, "recursive loops are not known here");
    parser.expect_end();
    made->body = until({"else", "endfor"});
    if (keyword_of(pieces_[at_]) == "else") {
      take("else");
      made->otherwise = until({"endfor"});
    }
    take("endfor");
    return made;
  }

  std::shared_ptr<const Statement> assign(ExpressionParser& parser, int line) {
    auto made = make(Statement::Kind::assign, line);
    do {
      auto name = parser.name();
      if (parser.take_sign(".")) name += "." + parser.name();
      made->names.push_back(std::move(name));
    } while (parser.take_sign(","));
    if (parser.take_sign("=")) {
      made->expression = parser.tuple();
      parser.expect_end();
      return made;
    }
    parser.expect_end();
    made->kind = Statement::Kind::capture;
    made->body = until({"endset"});
    take("endset");
    return made;
  }

  std::shared_ptr<const Statement> macro(ExpressionParser& parser, int line) {
    auto made = make(Statement::Kind::macro, line);
    made->text = parser.name();
    parser.expect_sign("(");
    while (!parser.is_sign(")")) {
      auto name = parser.name();
      made->takes.emplace_back(std::move(name), parser.take_sign("=") ? parser.expression() : nullptr);
      if (!parser.take_sign(",")) break;
    }
    parser.expect_sign(")");
    parser.expect_end();
    made->body = until({"endmacro"});
    take("endmacro");
    return made;
  }

  std::vector<Piece> pieces_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

Body parse(std::string_view source, bool trims) { return Parser(cut(source, trims)).run(); }

}  // namespace ingot::data::chat
