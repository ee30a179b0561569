// See tokenizer_steps.h.
#include "engine/text/tokenizer_steps.h"

namespace carrel::tok {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 8;
constexpr size_t kMaxSteps = 64;         // of a section, nested sequences included
constexpr size_t kMaxReplaceBytes = 64;  // what is put in for one match
constexpr size_t kMaxTemplateIds = 256;

std::unexpected<Error> corrupt(const char* section, const std::string& what) {
  return fail(Code::kCorrupt, what, std::string("tokenizer.json: ") + section);
}
std::unexpected<Error> unsupported(const char* section, const std::string& what) {
  return fail(Code::kUnsupported, what + " is not supported; use a model with another tokenizer",
              std::string("tokenizer.json: ") + section);
}

const json& field(const json& j, const char* name) {
  static const json none;
  auto it = j.find(name);
  return it == j.end() ? none : *it;
}

Result<std::string> type_of(const json& j, const char* section, int depth) {
  if (depth > kMaxDepth) return corrupt(section, "nested too deeply");
  if (!j.is_object()) return corrupt(section, "it is not an object");
  const json& type = field(j, "type");
  if (!type.is_string()) return corrupt(section, "it has no type");
  return type.get<std::string>();
}

/// Runs `each` on the items of a Sequence.
template <class F>
Status for_each(const json& j, const char* section, const char* name, F&& each) {
  const json& items = field(j, name);
  if (!items.is_array()) return corrupt(section, std::string("Sequence without ") + name);
  if (items.size() > kMaxSteps) return corrupt(section, "more than 64 steps");
  for (const json& item : items) CARREL_TRY(each(item));
  return {};
}

struct Pattern {
  bool is_regex = false;
  std::string text;
};

Result<Pattern> pattern_of(const json& j, const char* section) {
  const json& p = field(j, "pattern");
  if (p.is_string()) return Pattern{false, p.get<std::string>()};
  if (p.is_object() && field(p, "String").is_string()) return Pattern{false, p["String"].get<std::string>()};
  if (p.is_object() && field(p, "Regex").is_string()) return Pattern{true, p["Regex"].get<std::string>()};
  return corrupt(section, "pattern is neither a String nor a Regex");
}

Result<Regex> regex_of(const Pattern& p, const char* section) {
  Result<Regex> r = p.is_regex ? Regex::compile(p.text) : Regex::literal(p.text);
  if (!r) return fail(r.error().code, r.error().message, std::string("tokenizer.json: ") + section);
  return r;
}

Result<SplitBehavior> behavior_of(const json& j, const char* section, const char* fallback) {
  CARREL_ASSIGN(std::string name, text_field(j, "behavior", fallback));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return corrupt(section, "unknown behavior '" + name + "'");
}

Result<char32_t> one_char(const std::string& text, const char* section) {
  CARREL_ASSIGN(std::u32string cps, from_utf8(text));
  if (cps.size() != 1) return corrupt(section, "'" + text + "' is not one character");
  return cps[0];
}

Result<MetaspaceStep> metaspace_of(const json& j, const char* section) {
  MetaspaceStep step;
  CARREL_ASSIGN(std::string replacement, text_field(j, "replacement", "\xE2\x96\x81"));
  CARREL_ASSIGN(step.replacement, one_char(replacement, section));
  CARREL_ASSIGN(bool add, bool_field(j, "add_prefix_space", true));
  CARREL_ASSIGN(std::string scheme, text_field(j, "prepend_scheme", add ? "always" : "never"));
  if (scheme != "always" && scheme != "first" && scheme != "never") return corrupt(section, "unknown prepend_scheme '" + scheme + "'");
  using Prepend = MetaspaceStep::Prepend;
  step.prepend = scheme == "always" ? Prepend::kAlways : scheme == "first" ? Prepend::kFirst : Prepend::kNever;
  CARREL_ASSIGN(step.split, bool_field(j, "split", true));
  return step;
}

Status add_split(PreTokenizer& out, const Pattern& pattern, SplitBehavior behavior, bool invert) {
  CARREL_ASSIGN(Regex regex, regex_of(pattern, "pre_tokenizer"));
  out.add(SplitStep{std::move(regex), behavior, invert});
  return {};
}

Status read_byte_level(const json& j, PreTokenizer& out) {
  CARREL_ASSIGN(bool use_regex, bool_field(j, "use_regex", true));
  CARREL_ASSIGN(bool prefix, bool_field(j, "add_prefix_space", true));
  if (prefix && use_regex) {
    // The space comes before the split: a step of its own would only see the pieces.
    return unsupported("pre_tokenizer", "ByteLevel with add_prefix_space and use_regex");
  }
  if (use_regex) CARREL_TRY(add_split(out, {true, std::string(kGpt2Split)}, SplitBehavior::kIsolated, false));
  out.add(ByteLevelStep{prefix});
  return {};
}

}  // namespace

Result<bool> bool_field(const json& j, const char* name, bool fallback) {
  const json& v = field(j, name);
  if (v.is_null()) return fallback;
  if (!v.is_boolean()) return fail(Code::kCorrupt, std::string("'") + name + "' is not true or false", "tokenizer.json");
  return v.get<bool>();
}

Result<std::string> text_field(const json& j, const char* name, std::string fallback) {
  const json& v = field(j, name);
  if (v.is_null()) return fallback;
  if (!v.is_string()) return fail(Code::kCorrupt, std::string("'") + name + "' is not a text", "tokenizer.json");
  return v.get<std::string>();
}

Status read_normalizer(const json& j, Normalizer& out, int depth) {
  constexpr const char* kSection = "normalizer";
  if (j.is_null()) return {};
  if (out.n_steps() >= kMaxSteps) return corrupt(kSection, "more than 64 steps");
  CARREL_ASSIGN(std::string type, type_of(j, kSection, depth));
  if (type == "Sequence") return for_each(j, kSection, "normalizers", [&](const json& x) { return read_normalizer(x, out, depth + 1); });
  if (type == "NFC")
    out.add(NormalForm::kNfc);
  else if (type == "NFD")
    out.add(NormalForm::kNfd);
  else if (type == "NFKC")
    out.add(NormalForm::kNfkc);
  else if (type == "NFKD")
    out.add(NormalForm::kNfkd);
  else if (type == "Prepend") {
    CARREL_ASSIGN(std::string text, text_field(j, "prepend", ""));
    if (text.size() > kMaxReplaceBytes) return corrupt(kSection, "Prepend of more than 64 bytes");
    out.add(PrependText{std::move(text)});
  } else if (type == "Strip") {
    CARREL_ASSIGN(bool left, bool_field(j, "strip_left", true));
    CARREL_ASSIGN(bool right, bool_field(j, "strip_right", true));
    out.add(StripSpace{left, right});
  } else if (type == "Replace") {
    CARREL_ASSIGN(Pattern pattern, pattern_of(j, kSection));
    CARREL_ASSIGN(std::string content, text_field(j, "content", ""));
    if (content.size() > kMaxReplaceBytes) return corrupt(kSection, "Replace by more than 64 bytes");
    if (!pattern.is_regex) {
      out.add(ReplaceText{std::move(pattern.text), std::move(content)});
    } else {
      CARREL_ASSIGN(Regex regex, regex_of(pattern, kSection));
      out.add(ReplaceRegex{std::move(regex), std::move(content)});
    }
  } else {
    return unsupported(kSection, "'" + type.substr(0, 60) + "'");
  }
  return {};
}

Status read_pre_tokenizer(const json& j, PreTokenizer& out, int depth) {
  constexpr const char* kSection = "pre_tokenizer";
  if (j.is_null()) return {};
  if (out.n_steps() >= kMaxSteps) return corrupt(kSection, "more than 64 steps");
  CARREL_ASSIGN(std::string type, type_of(j, kSection, depth));
  if (type == "Sequence")
    return for_each(j, kSection, "pretokenizers", [&](const json& x) { return read_pre_tokenizer(x, out, depth + 1); });
  if (out.byte_level() && type == "ByteLevel") return unsupported(kSection, "ByteLevel twice");
  if (type == "ByteLevel") return read_byte_level(j, out);
  if (type == "Split") {
    CARREL_ASSIGN(Pattern pattern, pattern_of(j, kSection));
    CARREL_ASSIGN(SplitBehavior behavior, behavior_of(j, kSection, ""));
    CARREL_ASSIGN(bool invert, bool_field(j, "invert", false));
    return add_split(out, pattern, behavior, invert);
  }
  if (type == "Digits") {
    CARREL_ASSIGN(bool individual, bool_field(j, "individual_digits", false));
    out.add(DigitsStep{individual});
  } else if (type == "Punctuation") {
    CARREL_ASSIGN(SplitBehavior behavior, behavior_of(j, kSection, "Isolated"));
    out.add(PunctuationStep{behavior});
  } else if (type == "WhitespaceSplit") {
    out.add(WhitespaceSplitStep{});
  } else if (type == "Whitespace") {
    return add_split(out, {true, R"(\w+|[^\w\s]+)"}, SplitBehavior::kRemoved, true);
  } else if (type == "CharDelimiterSplit") {
    CARREL_ASSIGN(std::string delimiter, text_field(j, "delimiter", ""));
    CARREL_TRY(one_char(delimiter, kSection));
    return add_split(out, {false, delimiter}, SplitBehavior::kRemoved, false);
  } else if (type == "Metaspace") {
    CARREL_ASSIGN(MetaspaceStep step, metaspace_of(j, kSection));
    out.add(step);
  } else {
    return unsupported(kSection, "'" + type.substr(0, 60) + "'");
  }
  return {};
}

namespace {

Status read_template(const json& j, PostProcessor& out) {
  constexpr const char* kSection = "post_processor";
  bool before = true;
  PostProcessor made;
  CARREL_TRY(for_each(j, kSection, "single", [&](const json& item) -> Status {
    if (item.is_object() && item.contains("Sequence")) {
      if (!before) return unsupported(kSection, "a template that repeats the text");
      before = false;
      return {};
    }
    const json& special = item.is_object() ? field(item, "SpecialToken") : item;
    const json& name = special.is_object() ? field(special, "id") : special;
    const json& table = field(j, "special_tokens");
    if (!name.is_string() || !table.is_object() || !table.contains(name.get<std::string>())) {
      return corrupt(kSection, "the template names a token that special_tokens lacks");
    }
    const json& entry = table[name.get<std::string>()];
    const json& ids = entry.is_object() ? field(entry, "ids") : entry;
    if (!ids.is_array()) return corrupt(kSection, "a special token without ids");
    for (const json& id : ids) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > kMaxTokenId)
        return corrupt(kSection, "an id out of range");
      (before ? made.prefix : made.suffix).push_back(id.get<int32_t>());
      if (made.prefix.size() + made.suffix.size() > kMaxTemplateIds) return corrupt(kSection, "more than 256 special tokens around a text");
    }
    return {};
  }));
  out = std::move(made);
  return {};
}

Result<int32_t> pair_id(const json& j, const char* name) {
  const json& pair = field(j, name);
  if (!pair.is_array() || pair.size() != 2 || !pair[1].is_number_integer())
    return corrupt("post_processor", std::string(name) + " is malformed");
  const int64_t id = pair[1].get<int64_t>();
  if (id < 0 || id > kMaxTokenId) return corrupt("post_processor", "an id out of range");
  return static_cast<int32_t>(id);
}

}  // namespace

Status read_post_processor(const json& j, PostProcessor& out, int depth) {
  constexpr const char* kSection = "post_processor";
  if (j.is_null()) return {};
  CARREL_ASSIGN(std::string type, type_of(j, kSection, depth));
  if (type == "Sequence") return for_each(j, kSection, "processors", [&](const json& x) { return read_post_processor(x, out, depth + 1); });
  if (type == "ByteLevel") return {};  // moves offsets only
  if (type == "TemplateProcessing") return read_template(j, out);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    CARREL_ASSIGN(int32_t cls, pair_id(j, "cls"));
    CARREL_ASSIGN(int32_t sep, pair_id(j, "sep"));
    out = {{cls}, {sep}};
    return {};
  }
  return unsupported(kSection, "'" + type.substr(0, 60) + "'");
}

Result<std::string> TokenDecoder::bytes_of(const std::string& spelling) const {
  if (byte_level) {
    if (auto raw = bytes_of_chars(spelling)) return *raw;
    return spelling;
  }
  if (byte_fallback && spelling.size() == 6 && spelling.starts_with("<0x") && spelling.back() == '>') {
    const std::string digits = spelling.substr(3, 2);
    if (digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos) {
      return std::string(1, static_cast<char>(std::stoi(digits, nullptr, 16)));
    }
  }
  std::string out = spelling;
  for (const ReplaceText& r : replacements) {
    auto replaced = replace_all(out, r, max_grown_bytes(spelling.size()));
    if (!replaced) return corrupt("decoder", "a token grows more than 64-fold");
    out = std::move(*replaced);
  }
  if (spaces_between) out += ' ';
  return out;
}

Status read_decoder(const json& j, TokenDecoder& out, int depth) {
  constexpr const char* kSection = "decoder";
  if (out.replacements.size() >= kMaxSteps) return corrupt(kSection, "more than 64 steps");
  if (j.is_null()) {
    out.spaces_between = depth == 0;
    return {};
  }
  CARREL_ASSIGN(std::string type, type_of(j, kSection, depth));
  if (type == "Sequence") return for_each(j, kSection, "decoders", [&](const json& x) { return read_decoder(x, out, depth + 1); });
  if (type == "ByteLevel") {
    out.byte_level = true;
  } else if (type == "ByteFallback") {
    out.byte_fallback = true;
  } else if (type == "Replace") {
    CARREL_ASSIGN(Pattern pattern, pattern_of(j, kSection));
    CARREL_ASSIGN(std::string content, text_field(j, "content", ""));
    if (pattern.is_regex) return unsupported(kSection, "Replace by a regular expression");
    if (content.size() > kMaxReplaceBytes) return corrupt(kSection, "Replace by more than 64 bytes");
    out.replacements.push_back({std::move(pattern.text), std::move(content)});
  } else if (type == "Metaspace") {
    CARREL_ASSIGN(MetaspaceStep step, metaspace_of(j, kSection));
    std::string from;
    append_utf8(from, step.replacement);
    out.replacements.push_back({std::move(from), " "});
    // One space only: what the pre-tokenizer put in front. (The reference drops every leading space of the first token.)
    out.strip_leading_space = step.prepend != MetaspaceStep::Prepend::kNever;
  } else if (type == "Strip") {
    CARREL_ASSIGN(std::string content, text_field(j, "content", " "));
    const json &start = field(j, "start"), &stop = field(j, "stop");
    if (content != " " || start != 1 || stop != 0) return unsupported(kSection, "Strip other than of one leading space");
    out.strip_leading_space = true;
  } else if (type != "Fuse") {
    return unsupported(kSection, "'" + type.substr(0, 60) + "'");
  }
  return {};
}

}  // namespace carrel::tok
