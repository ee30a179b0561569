// See detokenizer.h.
#include "engine/text/detokenizer.h"

#include "engine/text/unicode.h"

namespace carrel {

std::string Detokenizer::push(int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  std::string_view bytes = tokenizer_->token_bytes(id);
  if (bytes.empty()) return {};
  if (strip_space_) {
    strip_space_ = false;
    if (bytes.front() == ' ') bytes.remove_prefix(1);
  }
  held_ += bytes;
  std::string out;
  size_t at = 0;
  while (at < held_.size()) {
    const tok::Utf8Step s = tok::utf8_step(held_, at);
    if (s.kind == tok::Utf8Step::kIncomplete) break;
    if (s.kind == tok::Utf8Step::kCharacter) {
      out.append(held_, at, s.n_bytes);
    } else {
      out += tok::kReplacement;
    }
    at += s.n_bytes;
  }
  held_.erase(0, at);
  return out;
}

std::string Detokenizer::flush() {
  if (held_.empty()) return {};
  held_.clear();
  return std::string(tok::kReplacement);
}

}  // namespace carrel
