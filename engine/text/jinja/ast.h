// The parsed template. Built by the parser, read by the interpreter; never changes afterwards, so many renders may share it.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/jinja/value.h"

namespace carrel::jinja {

class Interp;
struct Args;
using FilterFn = Value (*)(Interp&, const Value& input, const Args&);
using TestFn = bool (*)(Interp&, const Value& input, const Args&);

enum class Op : uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow, kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn, kNeg, kPos };

enum class ExprKind : uint8_t {
  kConst,
  kName,     // name
  kList,     // kids
  kTuple,    // kids
  kDict,     // kids: key, value, key, value ...
  kAttr,     // kids[0] . text
  kItem,     // kids[0] [ kids[1] ]
  kSlice,    // kids[0] [ kids[1] : kids[2] : kids[3] ], the last three may be null
  kCall,     // kids[0] ( kids[1..], named )
  kFilter,   // kids[0] | text ( kids[1..], named ); kids[0] is null in {% filter %}
  kTest,     // kids[0] is text ( kids[1..], named )
  kUnary,    // op kids[0]
  kBinary,   // kids[0] op kids[1]
  kNot,      // kids[0]
  kAnd,      // kids[0], kids[1]
  kOr,       // kids[0], kids[1]
  kCompare,  // kids[0] ops[0] kids[1] ops[1] kids[2] ...
  kConcat,   // kids[0] ~ kids[1] ~ ...
  kCond,     // kids[1] if kids[0] else kids[2] (may be null)
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  ExprKind kind = ExprKind::kConst;
  Op op = Op::kAdd;
  uint32_t line = 0;
  uint32_t depth = 1;  // height of the tree
  uint32_t name = 0;   // index into Program::names
  Value constant;
  std::string text;
  std::vector<ExprPtr> kids;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<Op> ops;
  FilterFn filter = nullptr;  // null: unknown, an error when reached
  TestFn test = nullptr;
};

/// What a value is assigned to: a name, name.attr of a namespace, or a tuple of targets.
struct Target {
  uint32_t name = 0;
  std::string attr;
  std::vector<Target> items;
  bool is_tuple = false;
};

struct Stmt;
using Block = std::vector<std::unique_ptr<Stmt>>;

struct Param {
  uint32_t id = 0;
  std::string name;
  ExprPtr preset;  // default; may be null
};

struct MacroDef {
  std::string name;
  uint32_t id = 0;
  std::vector<Param> params;
  Block body;
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

enum class StmtKind : uint8_t {
  kText,         // text
  kPrint,        // expr
  kIf,           // branches, orelse
  kFor,          // target in expr, test, body, orelse
  kSet,          // target = expr
  kSetBlock,     // target = body, filtered by expr (may be null)
  kMacro,        // macro
  kCallBlock,    // expr is the call; macro is the caller
  kFilterBlock,  // expr is the filter, body
  kWith,         // assigns, body
  kScope,        // body in its own scope ({% generation %})
  kBreak,
  kContinue,
};

struct Branch {
  ExprPtr test;
  Block body;
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  uint32_t line = 0;
  std::string text;
  ExprPtr expr;
  ExprPtr test;
  Target target;
  std::vector<Branch> branches;
  Block body;
  Block orelse;
  std::vector<std::pair<Target, ExprPtr>> assigns;
  MacroDef macro;
  bool recursive = false;
};

struct Program {
  Block body;
  std::vector<std::string> names;  // identifiers, by id
  uint32_t id_loop = 0, id_caller = 0, id_varargs = 0, id_kwargs = 0;
};

}  // namespace carrel::jinja
