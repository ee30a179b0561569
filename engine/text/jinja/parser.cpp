// Statements. See parser_impl.h.
#include "engine/text/jinja/parser.h"

#include <algorithm>

#include "engine/text/jinja/parser_impl.h"

namespace carrel::jinja {

Parser::Parser(std::vector<Token> tokens, const ParseLimits& limits)
    : tokens_(std::move(tokens)), limits_(limits), program_(std::make_shared<Program>()) {
  program_->id_loop = intern("loop");
  program_->id_caller = intern("caller");
  program_->id_varargs = intern("varargs");
  program_->id_kwargs = intern("kwargs");
}

Result<std::shared_ptr<const Program>> Parser::run() {
  CARREL_ASSIGN(program_->body, block({}));
  return program_;
}

std::unexpected<Error> Parser::bad(const std::string& what) const { return fail(Code::kInvalidArgument, what, at_line(cur().line)); }

std::string Parser::found() const {
  switch (cur().kind) {
    case Tok::kEnd: return "the end of the template";
    case Tok::kBlockEnd: return "'%}'";
    case Tok::kPrintEnd: return "'}}'";
    default: return "'" + cur().text + "'";
  }
}

bool Parser::accept_op(std::string_view op) {
  if (!is_op(op)) return false;
  next();
  return true;
}

bool Parser::accept_name(std::string_view name) {
  if (!is_name(name)) return false;
  next();
  return true;
}

Status Parser::expect_op(std::string_view op) {
  if (!accept_op(op)) return bad("expected '" + std::string(op) + "', found " + found());
  return {};
}

Status Parser::expect_name(std::string_view name) {
  if (!accept_name(name)) return bad("expected '" + std::string(name) + "', found " + found());
  return {};
}

Status Parser::expect(Tok kind, std::string_view what) {
  if (cur().kind != kind) return bad("expected " + std::string(what) + ", found " + found());
  next();
  return {};
}

Result<std::string> Parser::identifier(std::string_view what) {
  if (cur().kind != Tok::kName) return bad("expected " + std::string(what) + ", found " + found());
  std::string name = cur().text;
  next();
  return name;
}

Status Parser::check_depth() const {
  if (depth_ > limits_.max_depth) return bad("nested more than " + std::to_string(limits_.max_depth) + " levels deep");
  return {};
}

uint32_t Parser::intern(const std::string& name) {
  const auto [it, fresh] = ids_.emplace(name, static_cast<uint32_t>(program_->names.size()));
  if (fresh) program_->names.push_back(name);
  return it->second;
}

Result<Block> Parser::block(std::initializer_list<std::string_view> ends) {
  const Level level(depth_);
  CARREL_TRY(check_depth());
  Block out;
  while (cur().kind != Tok::kEnd) {
    auto stmt = std::make_unique<Stmt>();
    stmt->line = cur().line;
    if (cur().kind == Tok::kText) {
      stmt->text = cur().text;
      next();
    } else if (cur().kind == Tok::kPrintBegin) {
      next();
      stmt->kind = StmtKind::kPrint;
      CARREL_ASSIGN(stmt->expr, tuple(true, false));
      CARREL_TRY(expect(Tok::kPrintEnd, "'}}'"));
    } else {
      next();
      if (cur().kind != Tok::kName) return bad("expected the name of a tag, found " + found());
      if (std::find(ends.begin(), ends.end(), cur().text) != ends.end()) return out;
      CARREL_ASSIGN(stmt, statement());
    }
    out.push_back(std::move(stmt));
  }
  if (ends.size() > 0) return bad("the template ends where '" + std::string(*ends.begin()) + "' was expected");
  return out;
}

Status Parser::end_tag(std::string_view name) {
  CARREL_TRY(expect_name(name));
  return expect(Tok::kBlockEnd, "'%}'");
}

Result<Parser::StmtPtr> Parser::statement() {
  const uint32_t line = cur().line;
  const std::string tag = cur().text;
  next();
  Result<StmtPtr> out = [&]() -> Result<StmtPtr> {
    if (tag == "if") return if_statement();
    if (tag == "for") return for_statement();
    if (tag == "set") return set_statement();
    if (tag == "macro") return macro_statement();
    if (tag == "call") return call_statement();
    if (tag == "filter") return filter_statement();
    if (tag == "with") return with_statement();
    if (tag == "generation") return scope_statement();
    if (tag == "break" || tag == "continue") {
      if (n_loops_ == 0) return bad("'" + tag + "' outside a loop");
      auto stmt = std::make_unique<Stmt>();
      stmt->kind = tag == "break" ? StmtKind::kBreak : StmtKind::kContinue;
      CARREL_TRY(expect(Tok::kBlockEnd, "'%}'"));
      return stmt;
    }
    return bad("unknown tag '" + tag + "'");
  }();
  if (out) (*out)->line = line;
  return out;
}

Result<Parser::StmtPtr> Parser::if_statement() {
  const Level soft(n_branches_);
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::kIf;
  while (true) {
    Branch branch;
    CARREL_ASSIGN(branch.test, tuple(false, false));
    CARREL_TRY(expect(Tok::kBlockEnd, "'%}'"));
    CARREL_ASSIGN(branch.body, block({"endif", "elif", "else"}));
    stmt->branches.push_back(std::move(branch));
    if (!accept_name("elif")) break;
  }
  if (accept_name("else")) {
    CARREL_TRY(expect(Tok::kBlockEnd, "'%}'"));
    CARREL_ASSIGN(stmt->orelse, block({"endif"}));
  }
  CARREL_TRY(end_tag("endif"));
  return stmt;
}

Result<Parser::StmtPtr> Parser::for_statement() {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::kFor;
  CARREL_ASSIGN(stmt->target, target(true));
  CARREL_TRY(expect_name("in"));
  CARREL_ASSIGN(stmt->expr, tuple(false, false));
  if (accept_name("if")) {
    CARREL_ASSIGN(stmt->test, expression());
  }
  stmt->recursive = accept_name("recursive");
  CARREL_TRY(expect(Tok::kBlockEnd, "'%}'"));
  {
    const Level loop(n_loops_);
    CARREL_ASSIGN(stmt->body, block({"endfor", "else"}));
  }
  if (accept_name("else")) {
    CARREL_TRY(expect(Tok::kBlockEnd, "'%}'"));
    CARREL_ASSIGN(stmt->orelse, block({"endfor"}));
  }
  CARREL_TRY(end_tag("endfor"));
  return stmt;
}

Result<Parser::StmtPtr> Parser::set_statement() {
  auto stmt = std::make_unique<Stmt>();
  CARREL_ASSIGN(stmt->target, target(true));
  if (accept_op("=")) {
    stmt->kind = StmtKind::kSet;
    CARREL_ASSIGN(stmt->expr, tuple(true, false));
    CARREL_TRY(expect(Tok::kBlockEnd, "'%}'"));
    return stmt;
  }
  stmt->kind = StmtKind::kSetBlock;
  if (is_op("|")) {
    CARREL_ASSIGN(stmt->expr, filters(nullptr, false));
  }
  CARREL_TRY(expect(Tok::kBlockEnd, "'%}'"));
  CARREL_ASSIGN(stmt->body, block({"endset"}));
  CARREL_TRY(end_tag("endset"));
  return stmt;
}

Status Parser::parameters(MacroDef& macro) {
  CARREL_TRY(expect_op("("));
  while (!is_op(")")) {
    Param p;
    CARREL_ASSIGN(p.name, identifier("the name of a parameter"));
    p.id = intern(p.name);
    if (accept_op("=")) {
      CARREL_ASSIGN(p.preset, expression());
    } else if (!macro.params.empty() && macro.params.back().preset != nullptr) {
      return bad("parameter '" + p.name + "' without a default follows one with a default");
    }
    macro.params.push_back(std::move(p));
    if (!is_op(")")) CARREL_TRY(expect_op(","));
  }
  return expect_op(")");
}

Status Parser::macro_body(MacroDef& macro, std::string_view end) {
  CARREL_TRY(expect(Tok::kBlockEnd, "'%}'"));
  used_.emplace_back();
  const uint32_t loops = std::exchange(n_loops_, 0);
  auto body = block({end});
  n_loops_ = loops;
  const std::set<std::string> used = std::move(used_.back());
  used_.pop_back();
  if (!body) return std::unexpected(std::move(body).error());
  macro.body = *std::move(body);
  macro.uses_caller = used.contains("caller");
  macro.uses_varargs = used.contains("varargs");
  macro.uses_kwargs = used.contains("kwargs");
  return end_tag(end);
}

Result<Parser::StmtPtr> Parser::macro_statement() {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::kMacro;
  CARREL_ASSIGN(stmt->macro.name, identifier("the name of a macro"));
  stmt->macro.id = intern(stmt->macro.name);
  CARREL_TRY(parameters(stmt->macro));
  CARREL_TRY(macro_body(stmt->macro, "endmacro"));
  return stmt;
}

Result<Parser::StmtPtr> Parser::call_statement() {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::kCallBlock;
  stmt->macro.name = "caller";
  if (is_op("(")) CARREL_TRY(parameters(stmt->macro));
  CARREL_ASSIGN(stmt->expr, expression());
  if (stmt->expr->kind != ExprKind::kCall) return bad("a call block needs a call");
  CARREL_TRY(macro_body(stmt->macro, "endcall"));
  return stmt;
}

Result<Parser::StmtPtr> Parser::filter_statement() {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::kFilterBlock;
  CARREL_ASSIGN(stmt->expr, filters(nullptr, true));
  CARREL_TRY(expect(Tok::kBlockEnd, "'%}'"));
  CARREL_ASSIGN(stmt->body, block({"endfilter"}));
  CARREL_TRY(end_tag("endfilter"));
  return stmt;
}

Result<Parser::StmtPtr> Parser::with_statement() {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::kWith;
  while (cur().kind != Tok::kBlockEnd) {
    if (!stmt->assigns.empty()) CARREL_TRY(expect_op(","));
    CARREL_ASSIGN(Target t, single_target());
    CARREL_TRY(expect_op("="));
    CARREL_ASSIGN(ExprPtr value, expression());
    stmt->assigns.emplace_back(std::move(t), std::move(value));
  }
  CARREL_TRY(expect(Tok::kBlockEnd, "'%}'"));
  CARREL_ASSIGN(stmt->body, block({"endwith"}));
  CARREL_TRY(end_tag("endwith"));
  return stmt;
}

Result<Parser::StmtPtr> Parser::scope_statement() {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::kScope;
  CARREL_TRY(expect(Tok::kBlockEnd, "'%}'"));
  CARREL_ASSIGN(stmt->body, block({"endgeneration"}));
  CARREL_TRY(end_tag("endgeneration"));
  return stmt;
}

Result<Target> Parser::single_target() {
  const Level level(depth_);
  CARREL_TRY(check_depth());
  if (accept_op("(")) {
    CARREL_ASSIGN(Target inner, target(true));
    CARREL_TRY(expect_op(")"));
    return inner;
  }
  Target t;
  CARREL_ASSIGN(const std::string name, identifier("a name to assign to"));
  for (const auto* word : {"true", "false", "none", "True", "False", "None"}) {
    if (name == word) return bad("cannot assign to '" + name + "'");
  }
  t.name = intern(name);
  if (accept_op(".")) {
    CARREL_ASSIGN(t.attr, identifier("an attribute"));
  }
  return t;
}

Result<Target> Parser::target(bool allow_tuple) {
  CARREL_ASSIGN(Target first, single_target());
  if (!allow_tuple || !is_op(",")) return first;
  Target out;
  out.is_tuple = true;
  out.items.push_back(std::move(first));
  while (accept_op(",")) {
    if (cur().kind != Tok::kName && !is_op("(")) break;
    if (is_name("in")) break;
    CARREL_ASSIGN(Target t, single_target());
    out.items.push_back(std::move(t));
  }
  return out;
}

Result<std::shared_ptr<const Program>> parse_program(std::string_view source, const ParseLimits& limits) {
  if (source.size() > limits.max_source_bytes) {
    return fail(Code::kExhausted, "the template has " + std::to_string(source.size()) + " bytes, the limit is " + std::to_string(limits.max_source_bytes));
  }
  CARREL_ASSIGN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens), limits).run();
}

}  // namespace carrel::jinja
