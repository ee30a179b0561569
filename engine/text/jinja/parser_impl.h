// The parser's class, shared by parser.cpp (statements) and parser_expr.cpp (expressions). Internal to this folder.
#pragma once
#include <initializer_list>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/text/jinja/lexer.h"
#include "engine/text/jinja/parser.h"

namespace carrel::jinja {

class Parser {
 public:
  Parser(std::vector<Token> tokens, const ParseLimits& limits);
  Result<std::shared_ptr<const Program>> run();

 private:
  using StmtPtr = std::unique_ptr<Stmt>;
  /// Counts nesting while it lives.
  struct Level {
    explicit Level(uint32_t& d) : d_(d) { ++d_; }
    ~Level() { --d_; }
    uint32_t& d_;
  };

  // tokens
  const Token& cur() const { return tokens_[at_]; }
  const Token& ahead(size_t n) const { return tokens_[std::min(at_ + n, tokens_.size() - 1)]; }
  void next() { at_ += at_ + 1 < tokens_.size(); }
  bool is_op(std::string_view op) const { return cur().kind == Tok::kOp && cur().text == op; }
  bool is_name(std::string_view name) const { return cur().kind == Tok::kName && cur().text == name; }
  bool accept_op(std::string_view op);
  bool accept_name(std::string_view name);
  Status expect_op(std::string_view op);
  Status expect_name(std::string_view name);
  Status expect(Tok kind, std::string_view what);
  Result<std::string> identifier(std::string_view what);
  std::unexpected<Error> bad(const std::string& what) const;
  std::string found() const;
  Status check_depth() const;
  uint32_t intern(const std::string& name);

  // statements (parser.cpp)
  /// Parses up to a tag named in `ends`, which is left as the current name token (after the block begin).
  Result<Block> block(std::initializer_list<std::string_view> ends);
  Result<StmtPtr> statement();
  Status end_tag(std::string_view name);
  Result<StmtPtr> if_statement();
  Result<StmtPtr> for_statement();
  Result<StmtPtr> set_statement();
  Result<StmtPtr> macro_statement();
  Result<StmtPtr> call_statement();
  Result<StmtPtr> filter_statement();
  Result<StmtPtr> with_statement();
  Result<StmtPtr> scope_statement();
  Status parameters(MacroDef& macro);
  Status macro_body(MacroDef& macro, std::string_view end);
  Result<Target> target(bool allow_tuple);
  Result<Target> single_target();

  // expressions (parser_expr.cpp)
  ExprPtr node(ExprKind kind, uint32_t line) const;
  Result<ExprPtr> finish(ExprPtr e) const;
  Result<ExprPtr> expression();            // with `if`
  Result<ExprPtr> or_expr();               // without
  Result<ExprPtr> and_expr();
  Result<ExprPtr> not_expr();
  Result<ExprPtr> compare();
  Result<ExprPtr> sum();
  Result<ExprPtr> concat();
  Result<ExprPtr> product();
  Result<ExprPtr> power();
  Result<ExprPtr> unary(bool with_filter);
  Result<ExprPtr> primary();
  Result<ExprPtr> number();
  Result<ExprPtr> postfix(ExprPtr e);
  Result<ExprPtr> subscript(ExprPtr e);
  Result<ExprPtr> filters(ExprPtr e, bool first_named);
  Result<ExprPtr> filter(ExprPtr input);
  Result<ExprPtr> test(ExprPtr input);
  Status arguments(Expr& call);
  /// One expression, or a tuple where a comma follows.
  Result<ExprPtr> tuple(bool with_if, bool in_parentheses);
  Result<ExprPtr> list_literal();
  Result<ExprPtr> dict_literal();
  Result<ExprPtr> binary(Op op, ExprPtr a, ExprPtr b, uint32_t line) const;
  Result<Op> compare_op();

  std::vector<Token> tokens_;
  size_t at_ = 0;
  ParseLimits limits_;
  std::shared_ptr<Program> program_;
  std::unordered_map<std::string, uint32_t> ids_;
  uint32_t depth_ = 0;
  uint32_t n_loops_ = 0;
  uint32_t n_branches_ = 0;              // inside `if`: unknown filters wait until they are reached
  std::vector<std::set<std::string>> used_;  // names read in each open macro
};

}  // namespace carrel::jinja
