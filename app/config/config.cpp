#include "app/config/config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/model/json_text.h"
#include "engine/state/spec.h"
#include "storage/source_net.h"

extern char** environ;

namespace carrel {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 10;
constexpr size_t kMaxNodes = 10'000;  // an alias may repeat a section, so that the size of the file is no bound

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    std::string part(text.substr(0, end));
    const size_t first = part.find_first_not_of(' '), last = part.find_last_not_of(' ');
    if (first != std::string::npos) out.push_back(part.substr(first, last - first + 1));
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  return out;
}

bool parse_number(std::string_view text, double& out) {
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), out);
  return ec == std::errc{} && end == text.data() + text.size();
}

bool parse_integer(std::string_view text, int64_t& out) {
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), out);
  return ec == std::errc{} && end == text.data() + text.size();
}

bool in_range(double x, std::string_view range) {
  const size_t dots = range.find("..");
  double low = 0, high = 0;
  parse_number(range.substr(0, dots), low);
  parse_number(range.substr(dots + 2), high);
  return x >= low && x <= high;
}

bool is_loopback(const std::string& address) { return address == "localhost" || address == "::1" || address.starts_with("127."); }

/// No value needs control characters, and they reach logs, paths and the canonical form.
bool printable(const std::string& value) {
  return is_utf8(value) && std::none_of(value.begin(), value.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; });
}

bool is_choice(const std::string& value, std::string_view range) {
  const auto choices = split(range, '|');
  return std::find(choices.begin(), choices.end(), value) != choices.end();
}

/// What is wrong with a value, or empty.
std::string fault(const Setting& s, const std::string& value) {
  if (s.allows_auto && value == "auto") return {};
  double x = 0;
  int64_t n = 0;
  switch (s.type) {
    case SettingType::kFlag:
      if (value != "true" && value != "false") return "must be true or false";
      return {};
    case SettingType::kInteger:
      if (!parse_integer(value, n) || !in_range(static_cast<double>(n), s.range)) return "must be an integer in " + std::string(s.range);
      return {};
    case SettingType::kNumber:
      if (!parse_number(value, x) || !in_range(x, s.range)) return "must be a number in " + std::string(s.range);
      return {};
    case SettingType::kChoice:
      if (!is_choice(value, s.range)) return "must be one of " + std::string(s.range);
      return {};
    case SettingType::kSize:
      if (!parse_size(value)) return "must be a size such as 32GB, 16GiB or 512MB";
      return {};
    case SettingType::kList:
      if (!s.range.empty())
        for (const std::string& item : split(value, ','))
          if (!is_choice(item, s.range)) return "holds " + item + ", which is none of " + std::string(s.range);
      return {};
    case SettingType::kText:
    case SettingType::kSection: return {};
  }
  return {};
}

}  // namespace

std::map<std::string, std::string> environment() {
  std::map<std::string, std::string> out;
  for (char** e = environ; *e != nullptr; e++) {
    const std::string line = *e;
    const size_t equals = line.find('=');
    if (equals != std::string::npos) out.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return out;
}

Result<uint64_t> parse_size(std::string_view text) {
  const size_t digits = text.find_first_not_of("0123456789.");
  double x = 0;
  if (digits == 0 || !parse_number(text.substr(0, digits), x)) return fail(Code::kInvalidArgument, "not a size: " + std::string(text));
  std::string unit(digits == std::string_view::npos ? std::string_view{} : text.substr(digits));
  while (!unit.empty() && unit.front() == ' ') unit.erase(unit.begin());
  static constexpr std::pair<std::string_view, double> kUnits[] = {{"", 1},    {"B", 1},          {"kB", 1e3},         {"KB", 1e3},       {"MB", 1e6},       {"GB", 1e9},
                                                                   {"TB", 1e12}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
  for (const auto& [name, factor] : kUnits)
    if (unit == name) {
      if (x * factor >= 0x1p63) return fail(Code::kInvalidArgument, "too large: " + std::string(text));
      return static_cast<uint64_t>(x * factor);
    }
  return fail(Code::kInvalidArgument, "unknown unit in " + std::string(text));
}

Status Config::set(std::string_view key, const std::string& value, const std::string& origin) {
  const Setting* s = find_setting(key);
  if (const std::string members = s == nullptr ? members_of(key) : ""; !members.empty())
    return fail(Code::kInvalidArgument, std::string(key) + " is a section, not a value: it holds " + members, origin);
  if (s != nullptr && s->type == SettingType::kSection && s->key == key && !value.empty())
    return fail(Code::kInvalidArgument, std::string(key) + " is a section, not a value", origin);
  if (s == nullptr) {
    const std::string near = nearest_key(key);
    return fail(Code::kInvalidArgument, "unknown setting " + std::string(key) + (near.empty() ? "" : "; did you mean " + near + "?"), origin);
  }
  if (!printable(value)) return fail(Code::kInvalidArgument, std::string(key) + " holds a control character, or bytes that are not UTF-8", origin);
  if (const std::string wrong = fault(*s, value); !wrong.empty())
    return fail(Code::kInvalidArgument, std::string(key) + " is \"" + value.substr(0, 200) + "\": " + wrong, origin);
  if (!s->active) notes_.push_back(std::string(key) + " is not active in this version (" + origin + ")");
  if (s->type != SettingType::kSection || s->key != key) given_[std::string(key)] = {value, origin};
  return {};
}

Status Config::set_alias(const Alias& alias, const std::string& value, const std::string& origin) {
  if (alias.key == "kv_cache_config.enable_paged_attention") {
    if (value != "true")
      return fail(Code::kInvalidArgument, "kv_cache_config.enable_paged_attention cannot be turned off: all cache state is paged here; remove the line", origin);
    notes_.push_back("kv_cache_config.enable_paged_attention: always on (" + origin + ")");
    return {};
  }
  notes_.push_back(std::string(alias.key) + " is read as " + std::string(alias.canonical) + " (" + origin + ")");
  if (alias.key == "model.cache_policy") {
    if (value != "layered") return fail(Code::kInvalidArgument, "model.cache_policy is \"" + value + "\": only layered is known; use cache.offload.enable", origin);
    CARREL_TRY(set("cache.offload.tiers", "vram,host_memory,disk", origin));
    return set(alias.canonical, "true", origin);
  }
  return set(alias.canonical, value, origin);
}

Status Config::read_yaml(std::string_view text, const std::string& file_name) {
  if (text.size() > kMaxFileBytes) return fail(Code::kInvalidArgument, "is larger than " + std::to_string(kMaxFileBytes) + " bytes, which no configuration needs", file_name);
  if (!is_utf8(text)) return fail(Code::kInvalidArgument, "is not UTF-8 text", file_name);
  YAML::Node root;
  try {
    root = YAML::Load(std::string(text));
  } catch (const YAML::Exception& e) {
    return fail(Code::kInvalidArgument, std::string("is not YAML: ") + e.what(), file_name);
  }
  if (!root || root.IsNull()) return {};
  if (!root.IsMap()) return fail(Code::kInvalidArgument, "must hold sections such as `server:`", file_name);

  // Depth first with an own stack: a configuration is three levels deep, a hostile one may be deeper.
  std::vector<std::pair<std::string, YAML::Node>> stack{{"", root}};
  std::vector<std::pair<std::string, YAML::Node>> leaves;
  try {
    for (size_t n_nodes = 0; !stack.empty(); n_nodes++) {
      if (n_nodes > kMaxNodes) return fail(Code::kInvalidArgument, "has more than " + std::to_string(kMaxNodes) + " entries", file_name);
      auto [path, node] = stack.back();
      stack.pop_back();
      const Setting* s = find_setting(path);
      const bool open = s != nullptr && s->type == SettingType::kSection;
      if (node.IsNull() && (open || !members_of(path).empty())) {  // a section whose lines are all comments
        if (open) leaves.emplace_back(path, node);
        continue;
      }
      const bool of_nodes = open && node.IsSequence() && std::any_of(node.begin(), node.end(), [](const auto& item) { return !item.IsScalar(); });
      if (!of_nodes && (!node.IsMap() || (s != nullptr && !open))) {
        leaves.emplace_back(path, node);
        continue;
      }
      if (std::count(path.begin(), path.end(), '.') > 6) return fail(Code::kInvalidArgument, "is nested too deeply at " + path, file_name);
      std::vector<std::pair<std::string, YAML::Node>> children;
      std::set<std::string> names;
      for (size_t i = 0; of_nodes && i < node.size(); i++) children.emplace_back(path + "." + std::to_string(i), node[i]);
      for (const auto& item : of_nodes ? YAML::Node(YAML::NodeType::Map) : node) {
        const std::string name = item.first.as<std::string>();
        if (open && !is_plain_name(name))
          return fail(Code::kInvalidArgument, path + " holds a name that is not made of letters, digits, _ and -", file_name + ":" + std::to_string(item.first.Mark().line + 1));
        children.emplace_back(path.empty() ? name : path + "." + name, item.second);
        if (!names.insert(name).second) return fail(Code::kInvalidArgument, children.back().first + " is given twice", file_name + ":" + std::to_string(item.first.Mark().line + 1));
      }
      stack.insert(stack.end(), children.rbegin(), children.rend());
    }
    std::vector<std::string> seen;
    for (const auto& [key, node] : leaves) {
      const std::string origin = file_name + ":" + std::to_string(node.Mark().line + 1);
      std::string value;
      if (node.IsSequence()) {
        for (const auto& item : node) value += (value.empty() ? "" : ",") + item.as<std::string>();
      } else if (node.IsScalar()) {
        value = node.as<std::string>();
      } else if (node.IsMap()) {
        return fail(Code::kInvalidArgument, key + " takes a value, not a section", origin);
      }
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) return fail(Code::kInvalidArgument, key + " is given twice", origin);
      seen.push_back(key);
      const auto known = aliases();
      const auto alias = std::find_if(known.begin(), known.end(), [&, k = key](const Alias& a) { return a.key == k; });
      CARREL_TRY(alias != known.end() ? set_alias(*alias, value, origin) : set(key, value, origin));
    }
  } catch (const YAML::Exception& e) {
    return fail(Code::kInvalidArgument, std::string("cannot be read: ") + e.what(), file_name);
  }
  return {};
}

Result<Config> Config::load(std::string_view text, const std::string& file_name, const std::map<std::string, std::string>& environment,
                            const std::map<std::string, std::string>& flags) {
  Config c;
  CARREL_TRY(c.read_yaml(text, file_name));
  std::vector<std::string> sections;
  for (const Setting& s : settings()) {
    std::string name = "CARREL_" + std::string(s.key);
    for (char& ch : name) ch = ch == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(ch)));
    if (const auto at = environment.find(name); at != environment.end()) CARREL_TRY(c.set(s.key, at->second, name));
    sections.push_back(name);
  }
  for (const auto& [name, value] : environment) {
    if (std::find(sections.begin(), sections.end(), name) != sections.end()) continue;
    if (name.starts_with("CARREL_OBSERVE_ALERTS_") || name.starts_with("CARREL_LIFECYCLE_CANARY_")) {
      c.notes_.push_back(name + " is not active in this version");
      continue;
    }
    for (const char* section : {"CARREL_SERVER_", "CARREL_MODEL_", "CARREL_DEVICES_", "CARREL_CACHE_", "CARREL_SCHEDULER_", "CARREL_ADMISSION_", "CARREL_OBSERVE_", "CARREL_LIFECYCLE_"})
      if (name.starts_with(section)) return fail(Code::kInvalidArgument, "names no setting; `carrel config schema` lists them", name);
  }
  for (const auto& [key, value] : flags) CARREL_TRY(c.set(key, value, "command line"));
  CARREL_TRY(c.check_whole());
  return c;
}

Status Config::check_whole() const {
  const auto origin = [&](std::string_view key) {
    const auto at = given_.find(key);
    return at == given_.end() ? std::string("configuration") : at->second.origin;
  };
  const bool files = text("server.tls.mode") == "files", cert = !text("server.tls.cert").empty(), key = !text("server.tls.key").empty();
  if (cert != key)
    return fail(Code::kInvalidArgument, cert ? "server.tls.cert without server.tls.key: half a TLS pair; give both or neither" : "server.tls.key without server.tls.cert: half a TLS pair; give both or neither",
                origin(cert ? "server.tls.cert" : "server.tls.key"));
  if (files && !cert) return fail(Code::kInvalidArgument, "server.tls.mode is files: server.tls.cert and server.tls.key are needed", origin("server.tls.mode"));
  if (cert && !files) return fail(Code::kInvalidArgument, "server.tls.cert and .key are used only with server.tls.mode: files", origin("server.tls.cert"));
  if (text("server.tls.mode") == "off" && !is_loopback(text("server.listen")))
    return fail(Code::kInvalidArgument, "server.tls.mode is off and server.listen is " + text("server.listen") + ": clear text is allowed on loopback only", origin("server.tls.mode"));
  for (const std::string& net : list("server.allow"))
    if (const auto parsed = SourceNet::parse(net); !parsed)
      return fail(Code::kInvalidArgument, "server.allow holds " + net + ", which is no network such as 10.0.0.0/8 or fd00::/8", origin("server.allow"));
  if (!is_auto("cache.block_size") && integer("cache.block_size") % block_size_of({}) != 0)
    return fail(Code::kInvalidArgument, "cache.block_size is " + std::to_string(integer("cache.block_size")) + ": a block is a multiple of " + std::to_string(block_size_of({})) +
                    " tokens, and the model decides which; use auto", origin("cache.block_size"));
  std::set<std::string> tiers;
  for (const std::string& tier : list("cache.offload.tiers"))
    if (!tiers.insert(tier).second)
      return fail(Code::kInvalidArgument, "cache.offload.tiers names " + tier + " twice; name each tier once, fastest first", origin("cache.offload.tiers"));
  if (!flag("cache.prefix_reuse.require_state_complete"))
    return fail(Code::kInvalidArgument, "cache.prefix_reuse.require_state_complete cannot be false: a hit without complete state gives wrong answers; set cache.prefix_reuse.enabled: false instead",
                origin("cache.prefix_reuse.require_state_complete"));
  if (text("devices.determinism") == "relaxed") return fail(Code::kUnsupported, "devices.determinism: relaxed does not exist in this version; every kernel keeps strict bits", origin("devices.determinism"));
  if (!flag("devices.static_graph")) return fail(Code::kUnsupported, "devices.static_graph: false does not exist; every step is planned and replayed", origin("devices.static_graph"));
  if (text("devices.backend") == "cuda") return fail(Code::kUnsupported, "devices.backend: cuda is not in this version; use auto or cpu", origin("devices.backend"));
  if (const std::string& kv = text("model.kv_dtype"); kv != "auto" && kv != "f32" && kv != "bf16" && kv != "packed")
    return fail(Code::kUnsupported, "model.kv_dtype: " + kv + " is not in this version; use auto, f32, bf16 or packed", origin("model.kv_dtype"));
  return {};
}

const std::string& Config::value(std::string_view key, SettingType type) const {
  const Setting* s = find_setting(key);
  if (s == nullptr || s->type != type) abort();
  const auto at = given_.find(key);
  if (at != given_.end()) return at->second.value;
  static const std::map<std::string, std::string, std::less<>> kDefaults = [] {
    std::map<std::string, std::string, std::less<>> m;
    for (const Setting& each : settings()) m.emplace(each.key, each.fallback);
    return m;
  }();
  return kDefaults.find(key)->second;
}

bool Config::flag(std::string_view key) const { return value(key, SettingType::kFlag) == "true"; }
int64_t Config::integer(std::string_view key) const {
  int64_t n = 0;
  if (!parse_integer(value(key, SettingType::kInteger), n)) abort();
  return n;
}
double Config::number(std::string_view key) const {
  double x = 0;
  if (!parse_number(value(key, SettingType::kNumber), x)) abort();
  return x;
}
const std::string& Config::text(std::string_view key) const {
  const Setting* s = find_setting(key);
  return value(key, s != nullptr && s->type == SettingType::kChoice ? SettingType::kChoice : SettingType::kText);
}
std::vector<std::string> Config::list(std::string_view key) const { return split(value(key, SettingType::kList), ','); }
uint64_t Config::size_bytes(std::string_view key) const { return parse_size(value(key, SettingType::kSize)).value_or(0); }
bool Config::is_auto(std::string_view key) const {
  const Setting* s = find_setting(key);
  return s != nullptr && value(key, s->type) == "auto";
}
bool Config::is_set(std::string_view key) const { return given_.contains(key); }

std::string Config::canonical_yaml() const {
  YAML::Node root(YAML::NodeType::Map);
  for (const auto& [key, given] : given_) {
    const auto parts = split(key, '.');
    YAML::Node node = root;
    for (size_t i = 0; i + 1 < parts.size(); i++) node.reset(node[parts[i]]);
    if (find_setting(key)->type == SettingType::kList) {
      for (const std::string& item : split(given.value, ',')) node[parts.back()].push_back(item);
    } else {
      node[parts.back()] = given.value;
    }
  }
  YAML::Emitter out;
  out << root;
  return given_.empty() ? "{}\n" : std::string(out.c_str()) + "\n";
}

std::string schema_json() {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const Setting& s : settings()) {
    nlohmann::ordered_json one{{"key", s.key}, {"type", to_string(s.type)}, {"default", s.fallback}, {"range", s.range}};
    one["auto"] = s.allows_auto;
    one["takes_effect"] = to_string(s.takes);
    one["active"] = s.active;
    one["consequence"] = s.consequence;
    out.push_back(std::move(one));
  }
  return out.dump(2) + "\n";
}

std::string schema_markdown() {
  std::string out =
      "# Settings\n\nMade from the table in `app/config/schema.cpp` by `carrel config schema --markdown`. Aliases of other documents are accepted and named at start;\n"
      "what is marked \"later\" is accepted and reported as not active in this version.\n\n| key | value | default | takes effect | what it does |\n|---|---|---|---|---|\n";
  for (const Setting& s : settings()) {
    std::string range(s.range);
    for (size_t i = 0; (i = range.find('|', i)) != std::string::npos; i += 2) range.replace(i, 1, "\\|");
    std::string kind(s.type == SettingType::kFlag ? "true\\|false" : to_string(s.type));
    if (s.allows_auto) kind += " or `auto`";
    out += "| `" + std::string(s.key) + "` | " + kind + (range.empty() ? "" : " " + range) + " | " + (s.fallback.empty() ? "" : "`" + std::string(s.fallback) + "`") + " | " +
           (s.active ? std::string(to_string(s.takes)) : "later") + " | " + std::string(s.consequence) + " |\n";
  }
  return out;
}

}  // namespace carrel
