// Expressions, by precedence from the loosest to the tightest. See parser_impl.h.
#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "engine/text/jinja/parser_impl.h"

namespace carrel::jinja {

ExprPtr Parser::node(ExprKind kind, uint32_t line) const {
  auto e = std::make_unique<Expr>();
  e->kind = kind;
  e->line = line;
  return e;
}

/// Sets the height of a finished node; long chains count as height, so that walking the tree is bounded too.
Result<ExprPtr> Parser::finish(ExprPtr e) const {
  uint32_t deepest = 0;
  for (const auto& k : e->kids) deepest = std::max(deepest, k ? k->depth : 0);
  for (const auto& [name, k] : e->named) deepest = std::max(deepest, k->depth);
  e->depth = deepest + 1;
  if (e->depth > limits_.max_depth * 2) return bad("an expression is nested more than " + std::to_string(limits_.max_depth * 2) + " levels deep");
  return e;
}

Result<ExprPtr> Parser::binary(Op op, ExprPtr a, ExprPtr b, uint32_t line) const {
  auto e = node(ExprKind::kBinary, line);
  e->op = op;
  e->kids.push_back(std::move(a));
  e->kids.push_back(std::move(b));
  return finish(std::move(e));
}

Result<ExprPtr> Parser::expression() {
  const Level level(depth_);
  CARREL_TRY(check_depth());
  CARREL_ASSIGN(ExprPtr value, or_expr());
  while (is_name("if")) {
    const Level soft(n_branches_);
    auto e = node(ExprKind::kCond, cur().line);
    next();
    CARREL_ASSIGN(ExprPtr test, or_expr());
    ExprPtr otherwise;
    if (accept_name("else")) {
      CARREL_ASSIGN(otherwise, expression());
    }
    e->kids.push_back(std::move(test));
    e->kids.push_back(std::move(value));
    e->kids.push_back(std::move(otherwise));
    CARREL_ASSIGN(value, finish(std::move(e)));
  }
  return value;
}

Result<ExprPtr> Parser::or_expr() {
  CARREL_ASSIGN(ExprPtr left, and_expr());
  if (!is_name("or")) return left;
  auto e = node(ExprKind::kOr, cur().line);
  e->kids.push_back(std::move(left));
  while (accept_name("or")) {
    CARREL_ASSIGN(ExprPtr right, and_expr());
    e->kids.push_back(std::move(right));
  }
  return finish(std::move(e));
}

Result<ExprPtr> Parser::and_expr() {
  CARREL_ASSIGN(ExprPtr left, not_expr());
  if (!is_name("and")) return left;
  auto e = node(ExprKind::kAnd, cur().line);
  e->kids.push_back(std::move(left));
  while (accept_name("and")) {
    CARREL_ASSIGN(ExprPtr right, not_expr());
    e->kids.push_back(std::move(right));
  }
  return finish(std::move(e));
}

Result<ExprPtr> Parser::not_expr() {
  if (!is_name("not")) return compare();
  const Level level(depth_);
  CARREL_TRY(check_depth());
  auto e = node(ExprKind::kNot, cur().line);
  next();
  CARREL_ASSIGN(ExprPtr inner, not_expr());
  e->kids.push_back(std::move(inner));
  return finish(std::move(e));
}

Result<Op> Parser::compare_op() {
  constexpr std::pair<std::string_view, Op> kOps[] = {{"==", Op::kEq}, {"!=", Op::kNe}, {"<", Op::kLt}, {"<=", Op::kLe}, {">", Op::kGt}, {">=", Op::kGe}};
  for (const auto& [text, op] : kOps) {
    if (accept_op(text)) return op;
  }
  if (accept_name("in")) return Op::kIn;
  next();  // "not in"
  next();
  return Op::kNotIn;
}

Result<ExprPtr> Parser::compare() {
  CARREL_ASSIGN(ExprPtr left, sum());
  const auto more = [&] {
    if (cur().kind == Tok::kOp) {
      const std::string& t = cur().text;
      return t == "==" || t == "!=" || t == "<" || t == "<=" || t == ">" || t == ">=";
    }
    return is_name("in") || (is_name("not") && ahead(1).kind == Tok::kName && ahead(1).text == "in");
  };
  if (!more()) return left;
  auto e = node(ExprKind::kCompare, cur().line);
  e->kids.push_back(std::move(left));
  while (more()) {
    CARREL_ASSIGN(const Op op, compare_op());
    CARREL_ASSIGN(ExprPtr right, sum());
    e->ops.push_back(op);
    e->kids.push_back(std::move(right));
  }
  return finish(std::move(e));
}

Result<ExprPtr> Parser::sum() {
  CARREL_ASSIGN(ExprPtr left, concat());
  while (is_op("+") || is_op("-")) {
    const uint32_t line = cur().line;
    const Op op = cur().text == "+" ? Op::kAdd : Op::kSub;
    next();
    CARREL_ASSIGN(ExprPtr right, concat());
    CARREL_ASSIGN(left, binary(op, std::move(left), std::move(right), line));
  }
  return left;
}

Result<ExprPtr> Parser::concat() {
  CARREL_ASSIGN(ExprPtr left, product());
  if (!is_op("~")) return left;
  auto e = node(ExprKind::kConcat, cur().line);
  e->kids.push_back(std::move(left));
  while (accept_op("~")) {
    CARREL_ASSIGN(ExprPtr right, product());
    e->kids.push_back(std::move(right));
  }
  return finish(std::move(e));
}

Result<ExprPtr> Parser::product() {
  CARREL_ASSIGN(ExprPtr left, power());
  constexpr std::pair<std::string_view, Op> kOps[] = {{"*", Op::kMul}, {"/", Op::kDiv}, {"//", Op::kFloorDiv}, {"%", Op::kMod}};
  while (true) {
    const auto* op = std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& o) { return is_op(o.first); });
    if (op == std::end(kOps)) return left;
    const uint32_t line = cur().line;
    next();
    CARREL_ASSIGN(ExprPtr right, power());
    CARREL_ASSIGN(left, binary(op->second, std::move(left), std::move(right), line));
  }
}

Result<ExprPtr> Parser::power() {
  CARREL_ASSIGN(ExprPtr left, unary(true));
  while (is_op("**")) {
    const uint32_t line = cur().line;
    next();
    CARREL_ASSIGN(ExprPtr right, unary(true));
    CARREL_ASSIGN(left, binary(Op::kPow, std::move(left), std::move(right), line));
  }
  return left;
}

Result<ExprPtr> Parser::unary(bool with_filter) {
  const Level level(depth_);
  CARREL_TRY(check_depth());
  ExprPtr e;
  if (is_op("-") || is_op("+")) {
    e = node(ExprKind::kUnary, cur().line);
    e->op = cur().text == "-" ? Op::kNeg : Op::kPos;
    next();
    CARREL_ASSIGN(ExprPtr inner, unary(false));
    e->kids.push_back(std::move(inner));
    CARREL_ASSIGN(e, finish(std::move(e)));
  } else {
    CARREL_ASSIGN(e, primary());
  }
  CARREL_ASSIGN(e, postfix(std::move(e)));
  if (with_filter) return filters(std::move(e), false);
  return e;
}

Result<ExprPtr> Parser::number() {
  auto e = node(ExprKind::kConst, cur().line);
  const std::string& text = cur().text;
  if (cur().kind == Tok::kFloat) {
    e->constant = Value::real(std::strtod(text.c_str(), nullptr));
  } else {
    const char mark = text.size() > 2 && text[0] == '0' ? static_cast<char>(text[1] | 0x20) : '0';
    const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    const char* begin = text.data() + (base == 10 ? 0 : 2);
    const char* end = text.data() + text.size();
    int64_t i = 0;
    const auto [stop, ec] = std::from_chars(begin, end, i, base);
    if (stop != end || (ec != std::errc() && base != 10)) return bad("not a number that fits: '" + text + "'");
    e->constant = ec == std::errc() ? Value::integer(i) : Value::big_int(text);
  }
  next();
  return e;
}

Result<ExprPtr> Parser::primary() {
  const Token& t = cur();
  if (t.kind == Tok::kInt || t.kind == Tok::kFloat) return number();
  if (t.kind == Tok::kString) {
    auto e = node(ExprKind::kConst, t.line);
    std::string text;
    for (; cur().kind == Tok::kString; next()) text += cur().text;
    e->constant = Value::string(text, Origin::kTemplate);
    return e;
  }
  if (t.kind == Tok::kName) {
    auto e = node(ExprKind::kConst, t.line);
    const std::string name = t.text;
    next();
    if (name == "true" || name == "True") {
      e->constant = Value::boolean(true);
    } else if (name == "false" || name == "False") {
      e->constant = Value::boolean(false);
    } else if (name == "none" || name == "None") {
      e->constant = Value::none();
    } else {
      e->kind = ExprKind::kName;
      e->name = intern(name);
      if (!used_.empty()) used_.back().insert(name);
    }
    return e;
  }
  if (accept_op("(")) {
    CARREL_ASSIGN(ExprPtr inner, tuple(true, true));
    CARREL_TRY(expect_op(")"));
    return inner;
  }
  if (is_op("[")) return list_literal();
  if (is_op("{")) return dict_literal();
  return bad("expected an expression, found " + found());
}

Result<ExprPtr> Parser::tuple(bool with_if, bool in_parentheses) {
  const auto at_end = [&] {
    const Tok k = cur().kind;
    return k == Tok::kBlockEnd || k == Tok::kPrintEnd || is_op(")") || is_name("recursive") || is_name("if");
  };
  auto e = node(ExprKind::kTuple, cur().line);
  bool is_tuple = false;
  while (!at_end()) {
    CARREL_ASSIGN(ExprPtr item, with_if ? expression() : or_expr());
    e->kids.push_back(std::move(item));
    if (!accept_op(",")) break;
    is_tuple = true;
  }
  if (e->kids.size() == 1 && !is_tuple) return std::move(e->kids.front());
  if (e->kids.empty() && !in_parentheses) return bad("expected an expression, found " + found());
  return finish(std::move(e));
}

Result<ExprPtr> Parser::list_literal() {
  auto e = node(ExprKind::kList, cur().line);
  next();
  while (!is_op("]")) {
    if (!e->kids.empty()) CARREL_TRY(expect_op(","));
    if (is_op("]")) break;
    CARREL_ASSIGN(ExprPtr item, expression());
    e->kids.push_back(std::move(item));
  }
  next();
  return finish(std::move(e));
}

Result<ExprPtr> Parser::dict_literal() {
  auto e = node(ExprKind::kDict, cur().line);
  next();
  while (!is_op("}")) {
    if (!e->kids.empty()) CARREL_TRY(expect_op(","));
    if (is_op("}")) break;
    CARREL_ASSIGN(ExprPtr key, expression());
    CARREL_TRY(expect_op(":"));
    CARREL_ASSIGN(ExprPtr value, expression());
    e->kids.push_back(std::move(key));
    e->kids.push_back(std::move(value));
  }
  next();
  return finish(std::move(e));
}

Result<ExprPtr> Parser::postfix(ExprPtr e) {
  while (true) {
    const uint32_t line = cur().line;
    if (accept_op(".")) {
      auto attr = node(cur().kind == Tok::kInt ? ExprKind::kItem : ExprKind::kAttr, line);
      attr->kids.push_back(std::move(e));
      if (cur().kind == Tok::kInt) {
        CARREL_ASSIGN(ExprPtr index, number());
        attr->kids.push_back(std::move(index));
      } else {
        CARREL_ASSIGN(attr->text, identifier("a name or a number after '.'"));
      }
      CARREL_ASSIGN(e, finish(std::move(attr)));
    } else if (is_op("[")) {
      CARREL_ASSIGN(e, subscript(std::move(e)));
    } else if (is_op("(")) {
      auto call = node(ExprKind::kCall, line);
      call->kids.push_back(std::move(e));
      CARREL_TRY(arguments(*call));
      CARREL_ASSIGN(e, finish(std::move(call)));
    } else {
      return e;
    }
  }
}

Result<ExprPtr> Parser::subscript(ExprPtr e) {
  auto item = node(ExprKind::kItem, cur().line);
  next();
  item->kids.push_back(std::move(e));
  ExprPtr part;
  if (!is_op(":")) {
    CARREL_ASSIGN(part, expression());
  }
  item->kids.push_back(std::move(part));
  while (is_op(":")) {
    if (item->kids.size() == 4) return bad("a slice has at most three parts");
    item->kind = ExprKind::kSlice;
    next();
    ExprPtr bound;
    if (!is_op(":") && !is_op("]")) {
      CARREL_ASSIGN(bound, expression());
    }
    item->kids.push_back(std::move(bound));
  }
  CARREL_TRY(expect_op("]"));
  if (item->kind == ExprKind::kSlice) item->kids.resize(4);
  return finish(std::move(item));
}

Status Parser::arguments(Expr& call) {
  CARREL_TRY(expect_op("("));
  bool first = true;
  while (!is_op(")")) {
    if (!first) CARREL_TRY(expect_op(","));
    first = false;
    if (is_op(")")) break;
    if (is_op("*") || is_op("**")) return bad("arguments with '*' are not supported; write them out");
    if (cur().kind == Tok::kName && ahead(1).kind == Tok::kOp && ahead(1).text == "=") {
      std::string name = cur().text;
      next();
      next();
      CARREL_ASSIGN(ExprPtr value, expression());
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.named.empty()) return bad("a positional argument follows a named one");
      CARREL_ASSIGN(ExprPtr value, expression());
      call.kids.push_back(std::move(value));
    }
  }
  next();
  return {};
}

Result<ExprPtr> Parser::filters(ExprPtr e, bool first_named) {
  if (first_named) {
    CARREL_ASSIGN(e, filter(std::move(e)));
  }
  while (true) {
    if (accept_op("|")) {
      CARREL_ASSIGN(e, filter(std::move(e)));
    } else if (e != nullptr && accept_name("is")) {
      CARREL_ASSIGN(e, test(std::move(e)));
    } else if (e != nullptr && is_op("(")) {
      CARREL_ASSIGN(e, postfix(std::move(e)));
    } else {
      return e;
    }
  }
}

Result<ExprPtr> Parser::filter(ExprPtr input) {
  auto e = node(ExprKind::kFilter, cur().line);
  CARREL_ASSIGN(e->text, identifier("the name of a filter"));
  e->filter = find_filter(e->text);
  if (e->filter == nullptr && n_branches_ == 0) return bad("unknown filter '" + e->text + "'");
  e->kids.push_back(std::move(input));
  if (is_op("(")) CARREL_TRY(arguments(*e));
  return finish(std::move(e));
}

Result<ExprPtr> Parser::test(ExprPtr input) {
  const bool negated = accept_name("not");
  auto e = node(ExprKind::kTest, cur().line);
  CARREL_ASSIGN(e->text, identifier("the name of a test"));
  e->test = find_test(e->text);
  if (e->test == nullptr && n_branches_ == 0) return bad("unknown test '" + e->text + "'");
  e->kids.push_back(std::move(input));
  const Tok k = cur().kind;
  const bool word = k == Tok::kName && !is_name("else") && !is_name("or") && !is_name("and") && !is_name("if") && !is_name("not") && !is_name("in");
  if (is_op("(")) {
    CARREL_TRY(arguments(*e));
  } else if (word || k == Tok::kString || k == Tok::kInt || k == Tok::kFloat || is_op("[") || is_op("{")) {
    if (is_name("is")) return bad("tests with 'is' cannot be chained");
    CARREL_ASSIGN(ExprPtr arg, primary());
    CARREL_ASSIGN(arg, postfix(std::move(arg)));
    e->kids.push_back(std::move(arg));
  }
  CARREL_ASSIGN(e, finish(std::move(e)));
  if (!negated) return e;
  auto inverse = node(ExprKind::kNot, e->line);
  inverse->kids.push_back(std::move(e));
  return finish(std::move(inverse));
}

}  // namespace carrel::jinja
