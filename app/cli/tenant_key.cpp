// Tenants and keys: the two commands share one catalog and one way to print.
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/cli/cli.h"
#include "app/lifecycle/model_choice.h"

namespace carrel {
namespace {

using Json = nlohmann::ordered_json;
constexpr int64_t kHourMs = 3'600'000;

int print(const Json& j) {
  std::printf("%s\n", j.dump(2).c_str());
  return 0;
}

enum class Folder { kMayBeNew, kMustExist };

template <class F>
int with_catalog(const CommonArgs& common, Folder folder, F f) {
  auto catalog = folder == Folder::kMayBeNew ? open_catalog(Env::real(), common.data_dir) : open_existing_catalog(Env::real(), common.data_dir);
  if (!catalog) return report(catalog.error(), common);
  auto done = f(**catalog);
  return done ? *done : report(done.error(), common);
}

Json to_json(const TenantInfo& t) { return {{"name", t.name}, {"namespace", t.namespace_id}, {"created_ms", t.created_ms}, {"keys", t.n_keys}}; }

Json to_json(const KeyInfo& k) {
  const auto time = [](const std::optional<int64_t>& ms) { return ms ? Json(*ms) : Json(nullptr); };
  Json scopes = Json::array();
  for (const KeyScope s : k.scopes) scopes.push_back(to_string(s));
  return {{"id", k.id},          {"tenant", k.tenant},           {"name", k.name},           {"scopes", scopes},
          {"models", k.models},  {"nets", k.nets},               {"created_ms", k.created_ms}, {"not_before_ms", time(k.not_before_ms)},
          {"expires_ms", time(k.expires_ms)}, {"revoked_ms", time(k.revoked_ms)}, {"rotated_from", k.rotated_from}};
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& w : words) out += (out.empty() ? "" : ",") + w;
  return out;
}

/// "2031-05-04 13:00 UTC"
std::string utc(int64_t ms) {
  const std::chrono::sys_time<std::chrono::minutes> t{std::chrono::floor<std::chrono::minutes>(std::chrono::milliseconds(ms))};
  const auto day = std::chrono::floor<std::chrono::days>(t);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss time(t - day);
  char text[64];
  std::snprintf(text, sizeof text, "%04d-%02u-%02u %02d:%02d UTC", static_cast<int>(date.year()), static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                static_cast<int>(time.hours().count()), static_cast<int>(time.minutes().count()));
  return text;
}

/// All that limits a key, in one line; what does not limit it is left out.
std::string line_of(const KeyInfo& k) {
  std::vector<std::string> scopes;
  for (const KeyScope s : k.scopes) scopes.emplace_back(to_string(s));
  char head[256];
  std::snprintf(head, sizeof head, "%s  %-20s %-24s %s", k.id.c_str(), k.tenant.c_str(), joined(scopes).c_str(), k.name.c_str());
  std::string line = head;
  if (k.revoked_ms) line += "  revoked " + utc(*k.revoked_ms);
  else if (k.expires_ms) line += (*k.expires_ms <= Env::real()->wall_ms() ? "  expired " : "  expires ") + utc(*k.expires_ms);
  if (!k.nets.empty()) line += "  only from " + joined(k.nets);
  if (!k.models.empty()) line += "  only for " + joined(k.models);
  return line;
}

int show_created(const CreatedKey& k, bool json) {
  if (json) {
    Json j = to_json(k.info);
    j["key"] = k.key;
    return print(j);
  }
  std::printf("%s\n", k.key.c_str());
  std::fprintf(stderr, "key %s of tenant %s; it is shown this once and cannot be shown again\n", k.info.id.c_str(), k.info.tenant.c_str());
  return 0;
}

}  // namespace

int cmd_tenant_create(const TenantArgs& args) {
  return with_catalog(args.common, Folder::kMayBeNew, [&](Catalog& c) -> Result<int> {
    CARREL_ASSIGN(const TenantInfo t, c.create_tenant(args.name, "cli"));
    if (args.common.json) return print(to_json(t));
    std::printf("tenant %s created; `carrel key create --tenant %s` gives it a key\n", t.name.c_str(), t.name.c_str());
    return 0;
  });
}

int cmd_tenant_list(const TenantArgs& args) {
  return with_catalog(args.common, Folder::kMustExist, [&](Catalog& c) -> Result<int> {
    CARREL_ASSIGN(const auto all, c.tenants());
    if (args.common.json) {
      Json j = Json::array();
      for (const TenantInfo& t : all) j.push_back(to_json(t));
      return print(j);
    }
    for (const TenantInfo& t : all) std::printf("%-32s namespace %s  %lld keys\n", t.name.c_str(), t.namespace_id.c_str(), static_cast<long long>(t.n_keys));
    return 0;
  });
}

int cmd_tenant_remove(const TenantArgs& args) {
  return with_catalog(args.common, Folder::kMustExist, [&](Catalog& c) -> Result<int> {
    CARREL_TRY(c.remove_tenant(args.name, "cli"));
    if (args.common.json) return print({{"removed", args.name}});
    std::printf("tenant %s removed: its keys are revoked, its namespace secret is destroyed\n", args.name.c_str());
    return 0;
  });
}

int cmd_key_create(const KeyArgs& args) {
  return with_catalog(args.common, Folder::kMayBeNew, [&](Catalog& c) -> Result<int> {
    KeySpec spec;
    if (!args.tenant.empty()) spec.tenant = args.tenant;
    spec.name = args.name;
    spec.models = args.models;
    spec.nets = args.nets;
    if (!args.scopes.empty()) spec.scopes.clear();
    for (const std::string& s : args.scopes) {
      CARREL_ASSIGN(const KeyScope scope, parse_scope(s));
      spec.scopes.push_back(scope);
    }
    if (args.expires_days > 0) spec.expires_ms = Env::real()->wall_ms() + args.expires_days * 24 * kHourMs;
    CARREL_ASSIGN(const CreatedKey key, c.create_key(spec, "cli"));
    return show_created(key, args.common.json);
  });
}

int cmd_key_list(const KeyArgs& args) {
  return with_catalog(args.common, Folder::kMustExist, [&](Catalog& c) -> Result<int> {
    CARREL_ASSIGN(const auto all, c.keys(args.tenant));
    if (args.common.json) {
      Json j = Json::array();
      for (const KeyInfo& k : all) j.push_back(to_json(k));
      return print(j);
    }
    for (const KeyInfo& k : all) std::printf("%s\n", line_of(k).c_str());
    return 0;
  });
}

int cmd_key_revoke(const KeyArgs& args) {
  return with_catalog(args.common, Folder::kMustExist, [&](Catalog& c) -> Result<int> {
    CARREL_TRY(c.revoke_key(args.id, "cli"));
    if (args.common.json) return print({{"revoked", args.id}});
    std::printf("key %s revoked\n", args.id.c_str());
    return 0;
  });
}

int cmd_key_rotate(const KeyArgs& args) {
  return with_catalog(args.common, Folder::kMustExist, [&](Catalog& c) -> Result<int> {
    CARREL_ASSIGN(const CreatedKey key, c.rotate_key(args.id, args.overlap_hours * kHourMs, "cli"));
    return show_created(key, args.common.json);
  });
}

}  // namespace carrel
