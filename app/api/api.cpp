#include "app/api/api.h"

#include <algorithm>

#include "app/api/admin.h"
#include "app/api/errors.h"
#include "app/api/fields.h"
#include "app/api/purge.h"
#include "app/api/tokenize.h"
#include "base/log.h"
#include "storage/source_net.h"

namespace carrel {
namespace {

using enum Plane;

constexpr Route kRoutes[] = {
    {"GET", "/livez", kOpen, "The process answers."},
    {"GET", "/readyz", kOpen, "The model is resident and really produced a token lately; reason codes otherwise."},
    {"GET", "/metrics", kScrape, "Prometheus text; from loopback, or with a key of scope metrics:read."},
    {"GET", "/v1/models", kTenant, "Models that the key may use."},
    {"GET", "/v1/models/{id}", kTenant, "One model."},
    {"POST", "/v1/chat/completions", kTenant, "OpenAI chat completion."},
    {"POST", "/v1/completions", kTenant, "OpenAI text completion."},
    {"POST", "/v1/infer", kTenant, "{\"input\", \"max_tokens\"} in, {\"output\"} out."},
    {"POST", "/v1/tokenize", kTenant, "Token ids of a text or of messages."},
    {"POST", "/v1/detokenize", kTenant, "Text of token ids."},
    {"GET", "/v1/usage", kTenant, "Usage of the own tenant by day."},
    {"DELETE", "/v1/cache", kTenant, "Drop the own namespace's cached state."},
    {"GET", "/admin/v1/drills", kAdmin, "The table of drills, the one at work, the last results."},
    {"POST", "/admin/v1/drills", kAdmin, "Run drills beside serving, one go at a time: {\"names\", \"show_damage\"}."},
    {"GET", "/admin/v1/state", kAdmin, "Groups of state with their rules and figures, tiers, counters."},
    {"POST", "/admin/v1/cache/explain", kAdmin,
     "What of a prompt would be reused and why not more; nothing is taken: {\"tenant\", \"messages\"|\"prompt\"|\"input\"}."},
    {"POST", "/admin/v1/cache/verify", kAdmin, "Compute every record's digest again."},
    {"POST", "/admin/v1/cache/purge", kAdmin, "Drop one tenant's cached state from every tier: {\"tenant\"}."},
};

bool matches(std::string_view pattern, std::string_view path, std::string* tail) {
  const size_t brace = pattern.find('{');
  if (brace == std::string_view::npos) return pattern == path;
  if (!path.starts_with(pattern.substr(0, brace)) || path.size() == brace) return false;
  if (tail != nullptr) *tail = std::string(path.substr(brace));
  return true;
}

/// The route of a request; null when the path is unknown. allow: methods that the path has, when only the method is wrong.
const Route* find_route(std::string_view method, std::string_view path, std::string* tail, std::string* allow) {
  if (method == "HEAD") method = "GET";
  for (const Route& r : kRoutes) {
    if (!matches(r.path, path, tail)) continue;
    if (r.method == method) return &r;
    *allow += (allow->empty() ? "" : ", ") + std::string(r.method);
  }
  return nullptr;
}

std::string_view bearer(const HttpRequest& http) {
  std::string_view presented = http.header("authorization");
  if (!presented.starts_with("Bearer ") && !presented.starts_with("bearer ")) return http.header("x-api-key");
  return presented.substr(7);
}

/// What a key needs for a plane that asks for one.
KeyScope scope_of(Plane plane) {
  return plane == kScrape ? KeyScope::kMetricsRead : plane == kAdmin ? KeyScope::kAdmin : KeyScope::kInference;
}

/// The media type, parameters aside; letters count the same in both cases. None given counts as JSON.
bool is_json(std::string_view type) {
  std::string name;
  for (const char c : type.substr(0, type.find(';')))
    if (c != ' ' && c != '\t') name.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  return name.empty() || name == "application/json";
}

/// "window@384:evicted,csa@256:absent" for the log; "-" for none.
std::string veto_words(const Match& match) {
  std::string out;
  for (const Veto& v : match.vetoes) out += (out.empty() ? "" : ",") + v.group + "@" + std::to_string(v.position) + ":" + v.residency;
  return out.empty() ? "-" : out;
}

}  // namespace

std::string_view to_string(Plane plane) {
  switch (plane) {
    case kOpen:
      return "open";
    case kTenant:
      return "tenant";
    case kScrape:
      return "scrape";
    case kAdmin:
      return "admin";
  }
  return "unknown";
}
std::span<const Route> route_table() {
  return kRoutes;
}

std::string routes_json() {
  Json out = Json::array();
  for (const Route& r : kRoutes) out.push_back({{"method", r.method}, {"path", r.path}, {"plane", to_string(r.plane)}, {"what", r.what}});
  return out.dump(2) + "\n";
}

struct Api::Impl {
  ApiServices s;
  std::vector<SourceNet> allowed;

  /// What is known of one request when its handler runs.
  struct Call {
    HttpRequest& http;
    HttpResponse& out;
    const Route* route = nullptr;
    std::string tail;
    KeyInfo key;  // tenant plane
    int64_t start_ns = 0;
  };

  std::string new_id() const {
    std::byte raw[12];
    s.env->random(raw);
    return "req-" + to_hex(raw);
  }

  bool allow_peer(const std::string& address) const {
    return allowed.empty() || std::any_of(allowed.begin(), allowed.end(), [&](const SourceNet& n) { return n.contains(address); });
  }

  /// The key of a request, or an answer that refuses it. One 401 for every reason.
  bool authenticate(const HttpRequest& http, KeyInfo& key, HttpResponse& out) const {
    KeyRefusal why = KeyRefusal::kNone;
    auto found = s.catalog->authenticate(bearer(http), &why);
    if (found && found->allows_source(http.remote_addr)) {
      key = std::move(*found);
      return true;
    }
    if (!found && found.error().code != Code::kDenied) {
      spdlog::error("keys cannot be checked: {}", found.error().text());
      set_error(out, 503, "server_error", "keys cannot be checked right now", "unavailable", "", http.id);
      return false;
    }
    set_error(out, 401, "authentication_error", "no valid API key; send it as `Authorization: Bearer crl_…`", "invalid_api_key", "",
              http.id);
    out.headers.emplace_back("WWW-Authenticate", "Bearer");
    return false;
  }

  /// Everything that can be said before the body is read; true: answered.
  bool refuse(const HttpRequest& http, HttpResponse& out, Call& call) const {
    if (!allow_peer(http.remote_addr)) {
      set_error(out, 403, "permission_error", "this address may not connect", "address_not_allowed", "", http.id);
      out.close = true;
      return true;
    }
    std::string allow;
    call.route = find_route(http.method, http.path, &call.tail, &allow);
    const bool open = call.route != nullptr && call.route->plane == kOpen;
    const bool open_path = open || http.path == "/livez" || http.path == "/readyz";
    const bool local_scrape = call.route != nullptr && call.route->plane == kScrape && http.loopback;
    if (!open_path && !local_scrape && !authenticate(http, call.key, out)) return true;
    if (http.path.starts_with("/admin/") && !call.key.has_scope(KeyScope::kAdmin)) {  // which paths there are is for administrators
      refuse_scope(http, out);
      return true;
    }
    if (call.route == nullptr && !allow.empty()) {
      set_error(out, 405, "invalid_request_error", "the path has no such method", "method_not_allowed", "", http.id);
      out.headers.emplace_back("Allow", allow);
      return true;
    }
    if (call.route == nullptr) {
      set_error(out, 404, "not_found_error", "there is no such route", "not_found", "", http.id);
      return true;
    }
    if (!open && !local_scrape && !call.key.has_scope(scope_of(call.route->plane))) {
      refuse_scope(http, out);
      return true;
    }
    return refuse_body(http, out);
  }

  static void refuse_scope(const HttpRequest& http, HttpResponse& out) {
    set_error(out, 403, "permission_error", "the key's scopes do not cover this route", "insufficient_scope", "", http.id);
  }

  bool refuse_body(const HttpRequest& http, HttpResponse& out) const {
    if (http.method != "POST") return false;
    if (http.headers.contains("transfer-encoding")) {
      set_error(out, 411, "invalid_request_error", "send a Content-Length; chunked request bodies are not accepted", "length_required", "",
                http.id);
      out.close = true;
      return true;
    }
    if (!is_json(http.header("content-type"))) {
      set_error(out, 415, "invalid_request_error", "Content-Type must be application/json", "unsupported_media_type", "", http.id);
      out.close = true;
      return true;
    }
    if (const std::string_view coding = http.header("content-encoding"); !coding.empty() && coding != "identity") {
      set_error(out, 415, "invalid_request_error", "Content-Encoding is not accepted; send the body as it is", "unsupported_media_type", "",
                http.id);
      out.close = true;
      return true;
    }
    return false;
  }

  /// What the listener refused; who asked is told to log and metrics where the head says it.
  void refused(const HttpRequest& head, const Refusal& why, HttpResponse& out) const {
    HttpRequest http = head;
    http.id = new_id();
    Call call{http, out, nullptr, {}, {}, s.env->mono_ns()};
    std::string allow;
    call.route = find_route(http.method, http.path, &call.tail, &allow);
    if (std::string_view presented = bearer(http); !presented.empty())
      if (auto found = s.catalog->authenticate(presented); found && found->allows_source(http.remote_addr)) call.key = std::move(*found);
    set_error(out, why.status,
              why.status >= 500   ? "server_error"
              : why.status == 408 ? "timeout_error"
                                  : "invalid_request_error",
              why.message, why.code, "", http.id);
    finish(call);
  }

  bool begin(const HttpRequest& head, HttpResponse& out) const {
    HttpRequest http = head;
    http.id = new_id();
    Call call{http, out, nullptr, {}, {}, s.env->mono_ns()};
    if (!refuse(http, out, call)) return false;
    finish(call);
    return true;
  }

  void handle(HttpRequest& http, HttpResponse& out) const {
    http.id = new_id();
    Call call{http, out, nullptr, {}, {}, s.env->mono_ns()};
    if (refuse(http, out, call)) return finish(call);
    const std::string_view path = call.route->path;
    if (path == "/v1/chat/completions") return generate(call, Dialect::kChat);
    if (path == "/v1/completions") return generate(call, Dialect::kCompletion);
    if (path == "/v1/infer") return generate(call, Dialect::kInfer);
    if (call.route->plane == kAdmin)
      handle_admin({s.env, s.config, s.catalog, s.engine, s.drills}, call.route->method, path, call.key, http, out);
    if (path == "/livez") out.body = "{\"status\":\"alive\"}\n";
    if (path == "/readyz") ready(call);
    if (path == "/metrics") metrics(call);
    if (path == "/v1/models" || path == "/v1/models/{id}") models(call);
    if (path == "/v1/tokenize") text(call, [&](bool strict) { return tokenize_body(http.body, s.engine->model(), s.env, strict); });
    if (path == "/v1/detokenize") text(call, [&](bool strict) { return detokenize_body(http.body, s.engine->model(), strict); });
    if (path == "/v1/usage") usage(call);
    if (path == "/v1/cache") drop_cache(call);
    finish(call);
  }

  /// The line and the metric of a request that generated nothing.
  void finish(Call& call, const GenerateOutcome* o = nullptr) const {
    const std::string tenant = call.key.tenant.empty() ? "-" : call.key.tenant;
    const std::string route = call.route != nullptr ? std::string(call.route->path) : "-";
    const int status = call.out.status;
    if (std::none_of(call.out.headers.begin(), call.out.headers.end(), [](const auto& h) { return h.first == "x-request-id"; }))
      call.out.headers.emplace_back("x-request-id", call.http.id);
    s.metrics->add("carrel_requests_total", {{"tenant", tenant}, {"route", route}, {"status", std::to_string(status)}});
    if (call.route != nullptr && call.route->plane == kOpen && status == 200) return;  // probes would drown the rest
    const double ms = static_cast<double>(s.env->mono_ns() - call.start_ns) / 1e6;
    if (o == nullptr)
      spdlog::info("request id={} tenant={} key={} route={} status={} ms={:.1f}", call.http.id, tenant,
                   call.key.id.empty() ? "-" : call.key.id, route, status, ms);
    else
      spdlog::info(
          "request id={} tenant={} key={} route={} status={} ms={:.1f} prompt={} nominal={} effective={} restored={} completion={} "
          "queue_ms={:.1f} "
          "ttft_ms={:.1f} finish={} vetoes={}",
          call.http.id, tenant, call.key.id, route, status, ms, o->prompt_tokens, o->match.nominal, o->match.effective, o->match.restored,
          o->completion_tokens, static_cast<double>(o->queue_ns) / 1e6, static_cast<double>(o->ttft_ns) / 1e6,
          o->finish.empty() ? "error" : o->finish, veto_words(o->match));
  }

  void generate(Call& call, Dialect dialect) const {
    auto space = s.catalog->tenant_namespace(call.key.tenant);
    if (!space) {
      set_error(call.out, space.error(), call.http.id);
      return finish(call);
    }
    const Caller caller{call.key.tenant, call.key.id, space->id, space->secret};
    const GenerateDefaults defaults{s.config->integer("server.timeout_seconds") * 1000,
                                    s.config->integer("admission.queue_timeout_seconds") * 1000, s.config->flag("server.strict")};
    const Model& model = s.engine->model();
    if (!may_use_model(call)) return finish(call);
    auto parsed = parse_generate(dialect, call.http.body, model, caller, defaults, s.env, call.http.id);
    if (!parsed) {
      set_error(call.out, parsed.error(), call.http.id);
      return finish(call);
    }
    if (const Request* r = find_overflow(*parsed, model)) {
      const char* param = dialect == Dialect::kChat ? "messages" : dialect == Dialect::kInfer ? "input" : "prompt";
      set_overflow(call.out, static_cast<int64_t>(r->prompt.size()), r->max_new_tokens, model.graph().max_positions, param, call.http.id);
      return finish(call);
    }
    call.out.headers.emplace_back("x-request-id", call.http.id);
    auto shared = std::make_shared<GenerateCall>(std::move(*parsed));
    shared->permit = [catalog = s.catalog, id = call.key.id] { return catalog->check_key(id); };
    // A stream outlives this frame, so that what its end needs is copied.
    auto key = call.key;
    auto route = call.route;
    auto start = call.start_ns;
    auto id = call.http.id;
    run_generate(shared, *s.engine, s.env, call.http, call.out,
                 [this, key, route, start, id, &call, streamed = shared->stream](const GenerateOutcome& o) {
                   account(key, o);
                   if (!streamed || o.refused) return finish(call, &o);  // a refused submit is told before the stream begins
                   HttpRequest http;
                   http.id = id;
                   HttpResponse out;
                   Call late{http, out, route, {}, key, start};
                   finish(late, &o);
                 });
  }

  void account(const KeyInfo& key, const GenerateOutcome& o) const {
    if (o.refused) return;
    s.catalog->add_usage(key.id, s.engine->model().name(), {1, o.prompt_tokens, o.cached_tokens, o.completion_tokens});
    Metrics& m = *s.metrics;
    const Labels tenant{{"tenant", key.tenant}};
    m.add("carrel_prompt_tokens_total", tenant, static_cast<double>(o.prompt_tokens));
    m.add("carrel_completion_tokens_total", tenant, static_cast<double>(o.completion_tokens));
    m.add("carrel_matched_tokens_total", tenant, static_cast<double>(o.match.nominal));
    m.add("carrel_effective_tokens_total", tenant, static_cast<double>(o.match.effective));
    m.add("carrel_hit_tokens_total", {{"class", "nominal"}}, static_cast<double>(o.match.nominal));
    m.add("carrel_hit_tokens_total", {{"class", "effective_resident"}}, static_cast<double>(o.match.effective - o.match.restored));
    m.add("carrel_hit_tokens_total", {{"class", "effective_restored"}}, static_cast<double>(o.match.restored));
    for (const Veto& v : o.match.vetoes) m.add("carrel_state_veto_total", {{"kind", std::string(to_string(v.kind))}});
    const auto seconds = [](int64_t ns) { return static_cast<double>(ns) / 1e9; };
    m.observe("carrel_queue_seconds", seconds(o.queue_ns));
    m.observe("carrel_request_seconds", seconds(o.total_ns));
    if (o.ttft_ns > 0) m.observe("carrel_ttft_seconds", seconds(o.ttft_ns));
    if (o.completion_tokens > 1)
      m.observe("carrel_inter_token_seconds", seconds(o.total_ns - o.ttft_ns) / static_cast<double>(o.completion_tokens - 1));
  }

  void ready(Call& call) const {
    const std::vector<std::string> reasons = s.not_ready();
    Json j{{"status", reasons.empty() ? "ready" : "not ready"}, {"reasons", reasons}};
    call.out.status = reasons.empty() ? 200 : 503;
    call.out.body = dump(j) + "\n";
  }

  void metrics(Call& call) const {
    if (!s.config->flag("observe.metrics"))
      return set_error(call.out, 404, "not_found_error", "metrics are switched off (observe.metrics)", "not_found", "", call.http.id);
    Metrics& m = *s.metrics;
    const EngineStats e = s.engine->stats();
    m.set("carrel_queue_depth", {}, static_cast<double>(e.queued));
    m.set("carrel_running_sequences", {}, static_cast<double>(e.running));
    m.set("carrel_engine_steps_total", {}, static_cast<double>(e.steps));
    m.set("carrel_engine_step_seconds_total", {}, static_cast<double>(e.step_ns) / 1e9);
    m.set("carrel_graph_plans_total", {}, static_cast<double>(e.graph_plans));
    m.set("carrel_graph_recompiles_total", {}, static_cast<double>(e.graph_replans));
    m.set("carrel_graph_refused_total", {}, static_cast<double>(e.graph_refused));
    for (const auto& [result, n] : {std::pair{"sampled", e.shadow_sampled},
                                    {"verified", e.shadow_verified},
                                    {"mismatch", e.shadow_mismatches},
                                    {"dropped", e.shadow_dropped}})
      m.set("carrel_shadow_verify_total", {{"result", result}}, static_cast<double>(n));
    m.set("carrel_engine_heartbeat_age_seconds", {}, static_cast<double>(e.heartbeat_age_ns) / 1e9);
    m.set("carrel_preemptions_total", {}, static_cast<double>(e.preempted));
    m.set("carrel_digest_mismatch_total", {}, static_cast<double>(e.state.digest_mismatches));
    state_metrics(e.state);
    m.set("carrel_evictions_total", {{"tier", "device"}, {"reason", "capacity"}}, static_cast<double>(e.state.evicted));
    m.set("carrel_inert_cache_alarm", {}, e.state.inert_alarm ? 1 : 0);
    if (e.state.budget_bytes > 0)
      m.set("carrel_tier_watermark_ratio", {{"tier", "device"}},
            static_cast<double>(e.state.used_bytes) / static_cast<double>(e.state.budget_bytes));
    static constexpr const char* kChecks[] = {"whole_blocks", "layout", "intersection", "alignment"};
    for (size_t i = 0; i < std::size(kChecks); i++)
      m.set("carrel_state_check_failures_total", {{"check", kChecks[i]}}, static_cast<double>(e.state.check_failures[i]));
    for (const auto& g : e.state.groups) {
      const Labels labels{{"tier", "device"}, {"group", g.name}, {"kind", std::string(to_string(g.kind))}};
      m.set("carrel_state_records", labels, static_cast<double>(g.n_resident));
      m.set("carrel_state_bytes", labels, static_cast<double>(g.n_resident) * static_cast<double>(g.page_bytes));
    }
    if (const auto f = s.catalog->figures(); f) {
      m.set("carrel_db_wal_bytes", {}, static_cast<double>(f->wal_bytes));
      m.set("carrel_audit_head_seq", {}, static_cast<double>(f->audit_head_seq));
      for (const double seconds : f->write_seconds) m.observe("carrel_audit_write_seconds", seconds);
    } else {
      spdlog::warn("metrics: {}", f.error().text());
    }
    call.out.content_type = "text/plain; version=0.0.4";
    call.out.body = m.prometheus();
  }

  /// Captures, restores, and the host tier.
  void state_metrics(const StateStats& s) const {
    Metrics& m = *this->s.metrics;
    for (const StateKind kind : kStateKinds)
      m.set("carrel_state_restore_failures_total", {{"kind", std::string(to_string(kind))}},
            static_cast<double>(s.restore_failures[static_cast<size_t>(kind)]));
    m.set("carrel_state_captures_total", {{"result", "kept"}}, static_cast<double>(s.captured));
    m.set("carrel_state_captures_total", {{"result", "skipped"}}, static_cast<double>(s.captures_skipped));
    m.set("carrel_tier_bytes", {{"tier", "device"}}, static_cast<double>(s.used_bytes));
    m.set("carrel_tier_bytes", {{"tier", "host_memory"}}, static_cast<double>(s.host_bytes));
    m.set("carrel_tier_bytes", {{"tier", "disk"}}, static_cast<double>(s.disk_bytes));
    m.set("carrel_offloaded_extents_total", {{"tier", "host_memory"}}, static_cast<double>(s.offloaded));
    m.set("carrel_offloaded_extents_total", {{"tier", "disk"}}, static_cast<double>(s.stored_on_disk));
    m.set("carrel_offload_write_failures_total", {{"tier", "disk"}}, static_cast<double>(s.disk_write_failures));
    m.set("carrel_offload_dropped_total", {}, static_cast<double>(s.dropped_uncopied));
    m.set("carrel_offload_queue", {}, static_cast<double>(s.n_write_queue));
    const char* const lower[] = {"host_memory", "disk"};
    const double records[] = {static_cast<double>(s.restored - s.restored_from_disk), static_cast<double>(s.restored_from_disk)};
    const uint64_t given_up[] = {s.host_evicted, s.disk_evicted};
    for (size_t t = 0; t < std::size(lower); t++) {
      m.set("carrel_restored_records_total", {{"tier", lower[t]}}, records[t]);
      m.set("carrel_restore_seconds_total", {{"tier", lower[t]}}, s.restore_seconds[t]);
      m.set("carrel_restore_bytes_total", {{"tier", lower[t]}}, static_cast<double>(s.restore_bytes[t]));
      m.set("carrel_evictions_total", {{"tier", lower[t]}, {"reason", "capacity"}}, static_cast<double>(given_up[t]));
    }
    m.set("carrel_restores_total", {{"result", "failed"}}, static_cast<double>(s.restores_failed));
    m.set("carrel_restores_total", {{"result", "declined"}}, static_cast<double>(s.restores_declined));
    m.set("carrel_restore_failed_tokens_total", {}, static_cast<double>(s.restore_failed_tokens));
    m.set("carrel_tier_watermark_ratio", {{"tier", "device"}}, static_cast<double>(s.used_bytes) / static_cast<double>(s.budget_bytes));
    if (s.host_budget_bytes > 0)
      m.set("carrel_tier_watermark_ratio", {{"tier", "host_memory"}},
            static_cast<double>(s.host_bytes) / static_cast<double>(s.host_budget_bytes));
    if (s.disk_budget_bytes > 0)
      m.set("carrel_tier_watermark_ratio", {{"tier", "disk"}}, static_cast<double>(s.disk_bytes) / static_cast<double>(s.disk_budget_bytes));
  }

  void models(Call& call) const {
    const Model& model = s.engine->model();
    const bool may = call.key.allows_model(model.name());
    const Json one{{"id", model.name()},   {"object", "model"},        {"created", model.created_ms() / 1000},
                   {"owned_by", "carrel"}, {"family", model.family()}, {"context_length", model.graph().max_positions}};
    if (call.route->path == "/v1/models") {
      call.out.body = dump(Json{{"object", "list"}, {"data", may ? Json::array({one}) : Json::array()}}) + "\n";
      return;
    }
    if (!may || call.tail != model.name())
      return set_error(call.out, 404, "not_found_error", "there is no such model", "model_not_found", "model", call.http.id);
    call.out.body = dump(one) + "\n";
  }

  template <class F>
  void text(Call& call, F convert) const {
    if (!may_use_model(call)) return;
    auto answer = convert(s.config->flag("server.strict"));
    if (!answer) return set_error(call.out, answer.error(), call.http.id);
    tell_ignored(answer->ignored, call.out);
    call.out.body = std::move(answer->body);
  }

  /// False: the key is not for the model, and that is the answer.
  bool may_use_model(Call& call) const {
    if (call.key.allows_model(s.engine->model().name())) return true;
    set_error(call.out, 404, "not_found_error", "there is no such model for this key", "model_not_found", "model", call.http.id);
    return false;
  }

  void usage(Call& call) const {
    if (Status flushed = s.catalog->flush_usage(); !flushed) return set_error(call.out, flushed.error(), call.http.id);
    auto rows = s.catalog->usage(call.key.tenant);
    if (!rows) return set_error(call.out, rows.error(), call.http.id);
    Json data = Json::array();
    for (const UsageRow& r : *rows)
      data.push_back({{"day", r.day},
                      {"key", r.key_id},
                      {"model", r.model},
                      {"requests", r.counts.requests},
                      {"prompt_tokens", r.counts.prompt_tokens},
                      {"cached_tokens", r.counts.cached_tokens},
                      {"completion_tokens", r.counts.completion_tokens}});
    call.out.body = dump(Json{{"object", "list"}, {"tenant", call.key.tenant}, {"data", std::move(data)}}) + "\n";
  }

  void drop_cache(Call& call) const {
    const auto purged = purge_tenant(*s.catalog, *s.engine, s.keys, call.key.tenant, "key:" + call.key.id);
    if (!purged) return set_error(call.out, purged.error(), call.http.id);
    call.out.body = dump(Json{{"dropped_records", purged->dropped_records}}) + "\n";
  }
};

Api::Api(ApiServices services) : impl_(std::make_unique<Impl>()) {
  impl_->s = std::move(services);
  for (const std::string& net : impl_->s.config->list("server.allow"))
    if (auto parsed = SourceNet::parse(net)) impl_->allowed.push_back(*parsed);
  // A counter that is absent until its first event cannot be told from one that does not exist.
  for (const StateKind kind : kStateKinds) impl_->s.metrics->add("carrel_state_veto_total", {{"kind", std::string(to_string(kind))}}, 0);
  for (const char* hit : {"nominal", "effective_resident", "effective_restored", "replayed"})
    impl_->s.metrics->add("carrel_hit_tokens_total", {{"class", hit}}, 0);
}

Api::~Api() = default;

HttpHandler Api::handler() {
  HttpHandler h;
  h.begin = [this](const HttpRequest& r, HttpResponse& out) { return impl_->begin(r, out); };
  h.handle = [this](HttpRequest& r, HttpResponse& out) { impl_->handle(r, out); };
  h.refuse = [this](const HttpRequest& head, const Refusal& why, HttpResponse& out) { impl_->refused(head, why, out); };
  return h;
}

}  // namespace carrel
