// A chat template as a tree: the part of Jinja (jinja.palletsprojects.com, "Template Designer Documentation") that published templates use,
// with the blocks trimmed as transformers does. What it does not know it refuses by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/chat/value.h"

namespace ingot::data::chat {

struct Expression;
using ExpressionPtr = std::shared_ptr<const Expression>;

struct Expression {
  enum class Kind {
    literal,
    name,
    list,
    dict,
    attribute,
    subscript,
    slice,
    call,
    filter,
    test,
    negative,
    invert,
    both,
    either,
    binary,
    compare,
    conditional
  };
  Kind kind;
  int line = 0;
  std::string text;  // a name, an operator
  Value literal;
  // list: its elements. dict: keys and values in turn. attribute, subscript: of what (, at which). slice: of what, begin, end, step, null
  // where not given. call, filter, test: of what, then arguments. compare: operands, with an operator each in `operators`. conditional:
  // then, if, else or null.
  std::vector<ExpressionPtr> parts;
  std::vector<std::pair<std::string, ExpressionPtr>> named;  // arguments
  std::vector<std::string> operators;
};

struct Statement;
using Body = std::vector<std::shared_ptr<const Statement>>;

struct Statement {
  enum class Kind { text, output, branch, loop, assign, capture, macro, generation, stop, next };
  Kind kind;
  int line = 0;
  std::string text;                                          // itself; a macro's or a captured block's name
  ExpressionPtr expression, condition;                       // output, assign, loop's list; loop's filter
  std::vector<std::pair<ExpressionPtr, Body>> branches;      // if, elif; without a condition: else
  std::vector<std::string> names;                            // targets of assign and loop: "ns.key" for a member of a namespace
  std::vector<std::pair<std::string, ExpressionPtr>> takes;  // a macro's arguments with their defaults, null without
  Body body, otherwise;                                      // of a loop, macro, captured block; of a loop over nothing
};

/// `trims`: as of cut() (pieces.h). Throws DataError "line N: …".
Body parse(std::string_view source, bool trims = true);

}  // namespace ingot::data::chat
