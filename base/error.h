// Errors as values. Result<T> is the return type of everything that can fail; no exception crosses a folder.
//
// A message says what happened, to which object, and what to do about it: it is read by an administrator.
#pragma once
#include <expected>
#include <string>
#include <utility>

namespace carrel {

enum class Code {
  kInvalidArgument,  // the caller's input is wrong
  kNotFound,
  kAlreadyExists,
  kDenied,       // authentication or permission
  kCorrupt,      // stored bytes are not what they should be
  kUnsupported,  // well-formed, but not something this version does
  kIo,           // the operating system refused
  kExhausted,    // a stated limit (memory, queue, quota) is reached
  kDeadline,
  kCancelled,
  kUnavailable,  // not now; a retry may succeed
  kInternal,     // a fault of Carrel itself
};

const char* to_string(Code code);

struct [[nodiscard]] Error {
  Code code = Code::kInternal;
  std::string message;
  std::string where;  // the object: file, tensor, key, field; may be empty

  /// "where: message" for a human.
  std::string text() const { return where.empty() ? message : where + ": " + message; }
};

template <class T>
using Result = std::expected<T, Error>;
using Status = Result<void>;

inline std::unexpected<Error> fail(Code code, std::string message, std::string where = {}) {
  return std::unexpected(Error{code, std::move(message), std::move(where)});
}

}  // namespace carrel

#define CARREL_CONCAT_(a, b) a##b
#define CARREL_CONCAT(a, b) CARREL_CONCAT_(a, b)

/// Returns the error of an expression of type Result<T> to the caller; the value, if any, is dropped.
#define CARREL_TRY(expr)                                                                  \
  do {                                                                                    \
    if (auto carrel_r_ = (expr); !carrel_r_) return std::unexpected(std::move(carrel_r_).error()); \
  } while (0)

/// `CARREL_ASSIGN(auto x, f())`: declares or assigns the value, or returns the error to the caller.
#define CARREL_ASSIGN(lhs, expr) CARREL_ASSIGN_IMPL(CARREL_CONCAT(carrel_r_, __LINE__), lhs, expr)
#define CARREL_ASSIGN_IMPL(tmp, lhs, expr)                          \
  auto tmp = (expr);                                                \
  if (!tmp) return std::unexpected(std::move(tmp).error());         \
  lhs = *std::move(tmp)
