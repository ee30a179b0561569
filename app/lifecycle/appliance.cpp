#include "app/lifecycle/appliance.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "app/api/api.h"
#include "app/api/http_server.h"
#include "app/lifecycle/engine_room.h"
#include "app/lifecycle/folder_lock.h"
#include "app/lifecycle/internal_ca.h"
#include "base/log.h"
#include "engine/model/store.h"

namespace carrel {
namespace {

constexpr int64_t kProbeEveryNs = 30'000'000'000;
constexpr int64_t kSweepEveryNs = 60'000'000'000;
constexpr int64_t kStalledNs = 60'000'000'000;
constexpr int64_t kCertificateCheckNs = 3'600'000'000'000;
constexpr int64_t kDrainMs = 10'000;

}  // namespace

struct Appliance::Impl {
  Env* env;
  Config config;
  std::string data_dir;
  Metrics metrics;
  FolderLock lock;
  std::unique_ptr<Catalog> catalog;
  std::optional<CreatedKey> first_key;
  EngineRoom room;
  std::unique_ptr<DrillService> drills;
  std::unique_ptr<Api> api;
  std::unique_ptr<HttpServer> server;
  TlsFiles tls;
  std::string url;
  std::atomic<bool> probed{false}, draining{false};
  std::atomic<bool> damaged{false}, stopping{false};
  std::thread verifier;  // model.verify: sampled
  int64_t next_sweep_ns = 0, next_probe_ns = 0, next_certificate_ns = 0;
  uint64_t decoded_at_probe = 0;

  Impl(Env* e, Config c, std::string d) : env(e), config(std::move(c)), data_dir(std::move(d)) {}

  /// One real token through the whole engine, outside of every tenant's cache.
  bool probe() {
    Request r;
    r.id = "self-probe";
    r.prompt = {room.model->tokenizer().bos_id().value_or(0)};
    r.tenant = r.namespace_id = "self-probe";
    r.sampling.temperature = 0;
    r.max_new_tokens = 1;
    r.reuse = r.store = false;
    r.timeout_ms = 20'000;
    auto stream = room.engine->submit(std::move(r));
    if (!stream) return stream.error().code == Code::kExhausted;  // a full queue is busy, not broken
    const int64_t end = env->mono_ns() + 20'000'000'000;
    while (env->mono_ns() < end) {
      const auto event = (*stream)->next(100);
      if (event && std::holds_alternative<Finish>(*event)) return std::get<Finish>(*event).reason == FinishReason::kLength || std::get<Finish>(*event).reason == FinishReason::kStop;
    }
    return false;
  }

  /// Checks what a sampled load left out. Damage: readiness falls, the catalog remembers, the next start refuses.
  void verify_in_background() {
    if (room.registered.empty() || config.text("model.verify") == "full") return;
    verifier = std::thread([this] {
      const auto report = verify_entry(env, room.store_entry, [this](const StoreProgress&) { return !stopping; });
      if (stopping) return;
      if (report && report->damage.empty()) return spdlog::info("model {}: all {} pieces verified", room.registered, report->n_checked);
      damaged = true;
      spdlog::error("model {} is damaged: {}; remove it and import it again", room.registered, report ? report->damage.front().object : report.error().text());
      (void)catalog->set_model_status(room.registered, ModelStatus::kDamaged, "system");
    });
  }

  std::vector<std::string> not_ready() {
    std::vector<std::string> reasons;
    if (damaged) reasons.emplace_back("model_damaged");
    if (draining) reasons.emplace_back("draining");
    if (!probed) reasons.emplace_back("no_recent_token");
    if (room.engine->stats().heartbeat_age_ns > kStalledNs) reasons.emplace_back("engine_stalled");
    if (!catalog->health()) reasons.emplace_back("catalog_not_writable");
    return reasons;
  }

  Status listen() {
    HttpServerOptions o;
    o.address = config.text("server.listen");
    o.port = static_cast<int>(config.integer("server.port"));
    const std::string& mode = config.text("server.tls.mode");
    if (mode == "files") {
      o.cert_pem_file = config.text("server.tls.cert");
      o.key_pem_file = config.text("server.tls.key");
      CARREL_TRY(check_tls_pair(env, o.cert_pem_file, o.key_pem_file));
    } else if (mode == "internal-ca") {
      CARREL_ASSIGN(tls, ensure_internal_ca(env, data_dir + "/tls", names()));
      o.cert_pem_file = tls.cert_pem;
      o.key_pem_file = tls.key_pem;
      metrics.set("carrel_cert_not_after_seconds", {}, static_cast<double>(tls.not_after_ms) / 1000);
    }
    ApiServices s{env, &config, catalog.get(), room.engine.get(), &metrics, drills.get(), room.keys.get(), [this] { return not_ready(); }};
    api = std::make_unique<Api>(std::move(s));
    server = std::make_unique<HttpServer>(o, api->handler());
    CARREL_TRY(server->start());
    const std::string host = o.address == "0.0.0.0" ? "127.0.0.1" : o.address.find(':') != std::string::npos ? "[" + o.address + "]" : o.address;
    url = std::string(mode == "off" ? "http" : "https") + "://" + host + ":" + std::to_string(server->port());
    return {};
  }

  std::vector<std::string> names() const {
    std::vector<std::string> n = local_names();
    const std::string& address = config.text("server.listen");
    if (address != "0.0.0.0" && address != "::" && std::find(n.begin(), n.end(), address) == n.end()) n.push_back(address);
    return n;
  }

  void renew_certificate() {
    if (config.text("server.tls.mode") != "internal-ca") return;
    auto files = ensure_internal_ca(env, data_dir + "/tls", names());
    if (!files) return spdlog::error("the certificate cannot be renewed: {}", files.error().text());
    metrics.set("carrel_cert_not_after_seconds", {}, static_cast<double>(files->not_after_ms) / 1000);
    if (!files->renewed) return;
    if (Status reloaded = server->reload_certificate(); !reloaded) return spdlog::error("{}", reloaded.error().text());
    spdlog::info("certificate renewed");
  }
};

Appliance::Appliance(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Appliance::~Appliance() {
  if (impl_->server) impl_->server->stop();
  impl_->stopping = true;
  if (impl_->verifier.joinable()) impl_->verifier.join();
  impl_->room.engine.reset();  // after the last connection thread
}

Result<std::unique_ptr<Appliance>> Appliance::start(Env* env, Config config, const std::string& data_dir) {
  auto a = std::unique_ptr<Appliance>(new Appliance(std::make_unique<Impl>(env, std::move(config), data_dir)));
  Impl& i = *a->impl_;
  for (const std::string& note : i.config.notes()) spdlog::warn("configuration: {}", note);
  CARREL_TRY(env->make_dirs(data_dir));
  CARREL_ASSIGN(i.lock, FolderLock::take(data_dir));
  CARREL_ASSIGN(i.catalog, open_catalog(env, data_dir));
  CARREL_ASSIGN(i.room, open_engine_room(env, i.config, data_dir, i.catalog.get(), i.catalog.get()));
  i.drills = std::make_unique<DrillService>(env, i.room.model.get(), i.room.embedded, &i.metrics);
  i.metrics.set("carrel_build_info", {{"version", CARREL_VERSION}, {"numerics", i.room.model->numerics_id().substr(0, 16)}}, 1);
  i.probed = i.probe();
  if (!i.probed) return fail(Code::kInternal, "the model did not produce a token in the self-probe", i.room.model->name());
  CARREL_TRY(i.listen());
  CARREL_ASSIGN(i.first_key, i.catalog->bootstrap_key("system"));  // last of what can fail: it is given once and must reach its reader
  i.verify_in_background();
  const int64_t now = env->mono_ns();
  i.next_probe_ns = now + kProbeEveryNs;
  i.next_certificate_ns = now + kCertificateCheckNs;
  return a;
}

std::string Appliance::url() const { return impl_->url; }
std::string Appliance::ca_file() const { return impl_->tls.ca_pem; }
const std::optional<CreatedKey>& Appliance::first_key() const { return impl_->first_key; }

void Appliance::tick() {
  Impl& i = *impl_;
  const int64_t now = i.env->mono_ns();
  if (now >= i.next_probe_ns) {
    const uint64_t decoded = i.room.engine->stats().decode_tokens;
    i.probed = decoded != i.decoded_at_probe || i.probe();  // real answers prove as much as a probe
    i.decoded_at_probe = i.room.engine->stats().decode_tokens;
    i.next_probe_ns = i.env->mono_ns() + kProbeEveryNs;
    if (!i.probed) spdlog::error("self-probe failed: no token from the model; /readyz answers 503");
  }
  if (now >= i.next_sweep_ns) {
    i.room.state->sweep_disk();
    i.next_sweep_ns = now + kSweepEveryNs;
  }
  if (now >= i.next_certificate_ns) {
    i.renew_certificate();
    i.next_certificate_ns = now + kCertificateCheckNs;
  }
}

void Appliance::drain() {
  impl_->draining = true;
  impl_->drills->stop();
  impl_->room.engine->drain(kDrainMs);
  (void)impl_->catalog->flush_usage();
}

}  // namespace carrel
