// See tokenizer_file.h. A SAX reader: the merges of a large vocabulary as JSON values would take half a gigabyte.
#include "engine/text/tokenizer_file.h"

#include <nlohmann/json.hpp>

namespace carrel::tok {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxFileBytes = size_t{512} << 20;
constexpr size_t kMaxMerges = size_t{1} << 24;  // a rank is exact as a float

class Reader : public nlohmann::json_sax<json> {
 public:
  explicit Reader(TokenizerFile& out) : out_(out) { *out_.rest = nullptr; }
  const std::string& problem() const { return problem_; }

  bool null() override { return value(nullptr); }
  bool boolean(bool v) override { return value(v); }
  bool number_float(number_float_t v, const string_t&) override { return value(v); }
  bool binary(binary_t&) override { return stop("binary data"); }
  bool number_integer(number_integer_t v) override { return mode_ == Mode::kVocab ? add_vocab(v) : value(v); }
  bool number_unsigned(number_unsigned_t v) override {
    return mode_ == Mode::kVocab ? add_vocab(static_cast<int64_t>(v >> 1 > (~uint64_t{0} >> 2) ? ~uint64_t{0} >> 2 : v)) : value(v);
  }
  bool string(string_t& v) override {
    if (mode_ == Mode::kMerges) return merge_text(v);
    return value(std::move(v));
  }
  bool key(string_t& k) override {
    key_ = std::move(k);
    return true;
  }
  bool start_object(size_t) override {
    if (mode_ != Mode::kRest) return stop("an object in the vocabulary or the merges");
    if (at_model() && key_ == "vocab") {
      mode_ = Mode::kVocab;
      return true;
    }
    return open(json::object());
  }
  bool end_object() override {
    if (mode_ == Mode::kVocab) {
      mode_ = Mode::kRest;
      return true;
    }
    return close();
  }
  bool start_array(size_t) override {
    if (mode_ == Mode::kVocab) return stop("a list in the vocabulary");
    if (mode_ == Mode::kMerges) {
      if (in_pair_) return stop("a list within a merge");
      in_pair_ = true;
      pair_.clear();
      return true;
    }
    if (at_model() && key_ == "merges") {
      mode_ = Mode::kMerges;
      return true;
    }
    return open(json::array());
  }
  bool end_array() override {
    if (mode_ != Mode::kMerges) return close();
    if (!in_pair_) {
      mode_ = Mode::kRest;
      return true;
    }
    in_pair_ = false;
    if (pair_.size() != 2) return stop("a merge that is not a pair");
    return add_merge(std::move(pair_[0]), std::move(pair_[1]));
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return stop("it is not JSON at byte " + std::to_string(position));
  }

 private:
  enum class Mode { kRest, kVocab, kMerges };
  struct Frame {
    json* value;
    std::string name;
  };

  bool at_model() const { return stack_.size() == 2 && stack_[1].name == "model" && stack_[1].value->is_object(); }
  bool stop(std::string what) {
    problem_ = std::move(what);
    return false;
  }
  json* place(json&& v) {
    if (stack_.empty()) {
      *out_.rest = std::move(v);
      return out_.rest.get();
    }
    json& top = *stack_.back().value;
    if (top.is_array()) {
      top.push_back(std::move(v));
      return &top.back();
    }
    return &(top[key_] = std::move(v));
  }
  bool value(json&& v) {
    if (mode_ != Mode::kRest) return stop("a value of the wrong type in the vocabulary or the merges");
    place(std::move(v));
    return true;
  }
  bool open(json&& v) {
    if (stack_.size() >= kMaxDepth) return stop("it is nested too deeply");
    std::string name = !stack_.empty() && stack_.back().value->is_object() ? key_ : "";
    json* made = place(std::move(v));
    stack_.push_back({made, std::move(name)});
    return true;
  }
  bool close() {
    stack_.pop_back();
    return true;
  }
  bool add_vocab(int64_t id) {
    out_.vocab.emplace_back(std::move(key_), id);
    return true;
  }
  bool add_merge(std::string left, std::string right) {
    if (out_.merges.size() >= kMaxMerges) return stop("it has too many merges");
    out_.merges.emplace_back(std::move(left), std::move(right));
    return true;
  }
  bool merge_text(std::string& v) {
    if (in_pair_) {
      if (pair_.size() >= 2) return stop("a merge that is not a pair");
      pair_.push_back(std::move(v));
      return true;
    }
    const size_t space = v.find(' ');
    if (space == std::string::npos || v.find(' ', space + 1) != std::string::npos) return stop("a merge that is not two pieces");
    return add_merge(v.substr(0, space), v.substr(space + 1));
  }

  TokenizerFile& out_;
  Mode mode_ = Mode::kRest;
  bool in_pair_ = false;
  std::vector<std::string> pair_;
  std::string key_;
  std::string problem_;
  std::vector<Frame> stack_;
};

}  // namespace

Result<TokenizerFile> read_tokenizer_file(std::string_view text) {
  const std::string where = "tokenizer.json";
  if (text.size() > kMaxFileBytes) return fail(Code::kCorrupt, "it is larger than 512 MiB", where);
  TokenizerFile out;
  out.rest = std::make_shared<json>();
  Reader reader(out);
  try {
    if (!json::sax_parse(text, &reader)) return fail(Code::kCorrupt, "cannot be read: " + reader.problem(), where);
  } catch (const std::exception& e) {
    return fail(Code::kCorrupt, std::string("cannot be read: ") + e.what(), where);
  }
  if (!out.rest->is_object()) return fail(Code::kCorrupt, "it is not a JSON object", where);
  return out;
}

}  // namespace carrel::tok
