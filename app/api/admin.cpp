#include "app/api/admin.h"

#include "app/admin/state_report.h"
#include "app/api/errors.h"
#include "app/api/fields.h"
#include "app/api/match_json.h"
#include "app/api/messages.h"
#include "app/api/purge.h"
#include "storage/extent_store.h"

namespace carrel {

namespace {

struct AdminCall {
  const AdminServices& s;
  const KeyInfo& key;
  HttpRequest& http;
  std::vector<std::string> ignored;

  std::string actor() const { return "key:" + key.id; }
  bool strict() const { return s.config->flag("server.strict"); }
  /// A body may be left out.
  Result<Json> body() const { return http.body.empty() ? Result<Json>(Json::object()) : parse_body(http.body); }
};

using Answer = Result<std::string>;

Result<std::string> required_tenant(Fields& f) {
  std::string tenant = f.text("tenant", "");
  CARREL_TRY(f.status());
  if (tenant.empty()) return fail(Code::kInvalidArgument, "is required: the name of the tenant whose cache is meant", "tenant");
  return tenant;
}

Answer run_drills_route(AdminCall& call) {
  CARREL_ASSIGN(const Json object, call.body());
  Fields f(object);
  DrillSet set;
  if (const Json* names = f.find("names"); names != nullptr) {
    if (!names->is_array()) return fail(Code::kInvalidArgument, "must be an array of names of drills", "names");
    for (const Json& n : *names) {
      if (!n.is_string()) return fail(Code::kInvalidArgument, "must hold names of drills", "names");
      set.names.push_back(n.get<std::string>());
    }
    set.names = distinct_names(std::move(set.names));
  }
  if (f.has("show_damage")) set.show_damage = f.flag("show_damage", false);
  CARREL_TRY(f.status());
  CARREL_ASSIGN(call.ignored, ignored_fields(f, call.strict()));
  std::string names;
  for (const std::string& n : set.names) names += (names.empty() ? "" : " ") + n;
  const auto record = [&] {
    return call.s.catalog->record_act(call.actor(), AuditAction::kDrillRun, call.s.engine->model().name(),
                                      {{"names", names.empty() ? "all" : names}});
  };
  CARREL_ASSIGN(std::string document, call.s.drills->run(set, record, call.http.client_gone));
  return document + "\n";
}

Answer show_state(AdminCall& call) {
  const Model& model = call.s.engine->model();
  return state_json(model.name(), model.graph().state, call.s.engine->state().stats(), true) + "\n";
}

/// The prompt as the matching route would read it; the sampling around it is not looked at.
Result<Request> read_prompt(const AdminCall& call, Json object, const Namespace& space, const std::string& tenant,
                            std::vector<std::string>& ignored) {
  const bool chat = object.contains("messages"), text = object.contains("prompt"), input = object.contains("input");
  if (chat + text + input != 1) return fail(Code::kInvalidArgument, "give one of messages, prompt and input", "messages");
  const Model& model = call.s.engine->model();
  object.erase("tenant");
  if (!object.contains("model")) object["model"] = model.name();
  const Dialect dialect = chat ? Dialect::kChat : text ? Dialect::kCompletion : Dialect::kInfer;
  GenerateDefaults defaults;
  defaults.strict = call.strict();
  CARREL_ASSIGN(GenerateCall parsed, parse_generate(dialect, dump(object), model, {tenant, call.key.id, space.id, space.secret}, defaults,
                                                    call.s.env, call.http.id));
  if (parsed.requests.size() != 1) return fail(Code::kInvalidArgument, "one prompt at a time is explained", text ? "prompt" : "n");
  ignored = std::move(parsed.ignored);
  return std::move(parsed.requests.front());
}

Answer explain(AdminCall& call) {
  CARREL_ASSIGN(const Json object, call.body());
  Fields f(object);
  CARREL_ASSIGN(const std::string tenant, required_tenant(f));
  CARREL_ASSIGN(const Namespace space, call.s.catalog->tenant_namespace(tenant));
  CARREL_ASSIGN(const Request request, read_prompt(call, object, space, tenant, call.ignored));
  const Engine& engine = *call.s.engine;
  const int64_t block = engine.model().graph().state.block_size, n = static_cast<int64_t>(request.prompt.size());
  AdmitRequest admit;
  admit.tokens = request.prompt;
  admit.namespace_id = space.id;
  admit.namespace_secret = space.secret;
  admit.boundaries = request.boundaries;
  const Match m = call.s.engine->state().explain(admit);
  Json j{{"tenant", tenant},
         {"prompt_tokens", n},
         {"context_tokens", engine.model().graph().max_positions},
         {"block_tokens", block},
         {"most", (n - 1) / block * block},
         {"reuse_enabled", call.s.config->flag("cache.prefix_reuse.enabled")}};
  j.update(match_json(m));
  return dump(j) + "\n";
}

Answer verify(AdminCall& call) {
  CARREL_ASSIGN(const Json object, call.body());
  const Fields f(object);
  CARREL_ASSIGN(call.ignored, ignored_fields(f, call.strict()));
  CARREL_TRY(call.s.catalog->record_act(call.actor(), AuditAction::kCacheVerify, call.s.engine->model().name(), {}));
  StateManager& state = call.s.engine->state();
  int64_t n = 0;
  for (const auto& g : state.stats().groups) n += g.n_resident;
  const int64_t n_bad = state.verify();
  Json told{{"ok", n_bad == 0}, {"records", n}, {"quarantined", n_bad}};
  if (const auto disk = state.verify_disk()) {
    told["ok"] = n_bad == 0 && disk->clean();
    told["disk"] = {{"extents", disk->n_rows},
                    {"bytes", disk->n_bytes},
                    {"quarantined", disk->n_bad},
                    {"not_read", disk->n_skipped},
                    {"orphans", disk->n_orphans},
                    {"findings", disk->findings},
                    {"foreign_files", disk->foreign}};
  }
  return dump(told) + "\n";
}

Answer purge(AdminCall& call) {
  CARREL_ASSIGN(const Json object, call.body());
  Fields f(object);
  CARREL_ASSIGN(const std::string tenant, required_tenant(f));
  CARREL_ASSIGN(call.ignored, ignored_fields(f, call.strict()));
  CARREL_ASSIGN(const TenantPurge purged, purge_tenant(*call.s.catalog, *call.s.engine, call.s.keys, tenant, call.actor()));
  return dump(Json{{"tenant", tenant}, {"namespace", purged.old_namespace}, {"dropped_records", purged.dropped_records}}) + "\n";
}

Answer answer(AdminCall& call, std::string_view method, std::string_view path) {
  if (path == "/admin/v1/drills") return method == "POST" ? run_drills_route(call) : Answer(call.s.drills->list() + "\n");
  if (path == "/admin/v1/state") return show_state(call);
  if (path == "/admin/v1/cache/explain") return explain(call);
  if (path == "/admin/v1/cache/verify") return verify(call);
  if (path == "/admin/v1/cache/purge") return purge(call);
  return fail(Code::kInternal, "the route is in the table and nobody answers it", std::string(path));
}

}  // namespace

void handle_admin(const AdminServices& s, std::string_view method, std::string_view path, const KeyInfo& key, HttpRequest& http,
                  HttpResponse& out) {
  AdminCall call{s, key, http, {}};
  auto done = answer(call, method, path);
  if (!done) return set_error(out, done.error(), http.id);
  tell_ignored(call.ignored, out);
  out.body = std::move(*done);
}

}  // namespace carrel
