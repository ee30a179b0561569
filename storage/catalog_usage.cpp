// Usage counters: added up in memory, written in batches by the writer thread.
#include <chrono>
#include <cstdio>
#include <utility>

#include "base/log.h"
#include "storage/catalog_impl.h"

namespace carrel {
namespace {

constexpr int64_t kDayMs = 86'400'000;

std::string day_text(int64_t day) {
  const std::chrono::year_month_day d{std::chrono::sys_days{std::chrono::days{day}}};
  char text[32];
  std::snprintf(text, sizeof(text), "%04d-%02u-%02u", static_cast<int>(d.year()), static_cast<unsigned>(d.month()),
                static_cast<unsigned>(d.day()));
  return text;
}

Result<int64_t> parse_day(const std::string& text) {
  int year = 0, end = 0;
  unsigned month = 0, day = 0;
  const bool read = std::sscanf(text.c_str(), "%4d-%2u-%2u%n", &year, &month, &day, &end) == 3 && end == static_cast<int>(text.size()) &&
                    text.size() == 10;
  const std::chrono::year_month_day date{std::chrono::year{year}, std::chrono::month{month}, std::chrono::day{day}};
  if (!read || !date.ok()) return fail(Code::kInvalidArgument, "is not a day; write it as 2026-01-31", text);
  return std::chrono::sys_days{date}.time_since_epoch().count();
}

void add(UsageCounts& to, const UsageCounts& more) {
  to.requests += more.requests;
  to.prompt_tokens += more.prompt_tokens;
  to.cached_tokens += more.cached_tokens;
  to.completion_tokens += more.completion_tokens;
}

Status write_usage(Db& db, const std::map<Catalog::Impl::UsageKey, UsageCounts>& usage) {
  for (const auto& [key, c] : usage) {
    const auto& [key_id, model, day] = key;
    CARREL_TRY(
        db.run("INSERT INTO usage(tenant_id, key_id, model, day, requests, prompt_tokens, cached_tokens, completion_tokens) "
               "SELECT tenant_id, id, ?, ?, ?, ?, ?, ? FROM keys WHERE id = ? "
               "ON CONFLICT DO UPDATE SET requests = requests + excluded.requests, prompt_tokens = prompt_tokens + excluded.prompt_tokens, "
               "cached_tokens = cached_tokens + excluded.cached_tokens, completion_tokens = completion_tokens + excluded.completion_tokens",
               model, day, c.requests, c.prompt_tokens, c.cached_tokens, c.completion_tokens, key_id));
    if (db.n_changed() == 0) spdlog::warn("usage of the unknown key {} is dropped", key_id);
  }
  return {};
}

}  // namespace

void Catalog::add_usage(const std::string& key_id, const std::string& model, const UsageCounts& counts) {
  const int64_t day = impl_->now_ms() / kDayMs;
  MutexLock lock(impl_->usage_mutex);
  add(impl_->usage[{key_id, model, day}], counts);
}

std::map<Catalog::Impl::UsageKey, UsageCounts> Catalog::Impl::take_usage() {
  MutexLock lock(usage_mutex);
  return std::exchange(usage, {});
}

void Catalog::Impl::settle_usage(const std::map<UsageKey, UsageCounts>& counts, const Status& written) {
  if (counts.empty()) return;  // nothing was at stake, and nobody would try again
  if (!written) {
    MutexLock lock(usage_mutex);
    for (const auto& [key, c] : counts) add(usage[key], c);
  }
  MutexLock lock(trouble_mutex);
  if (usage_trouble && !written)
    spdlog::error("usage cannot be written and is kept in memory: {}; it is tried again until it succeeds, /readyz says so meanwhile",
                  written.error().text());
  if (!usage_trouble && written) spdlog::info("usage is written again; no count was lost");
  usage_trouble = written;
}

std::optional<WriteQueue::Job> Catalog::Impl::usage_job() {
  auto batch = std::make_shared<std::map<UsageKey, UsageCounts>>(take_usage());
  if (batch->empty()) return std::nullopt;
  return WriteQueue::Job{[batch](Db& db) { return write_usage(db, *batch); },
                         [this, batch](const Status& s) { settle_usage(*batch, s); }};
}

Status Catalog::flush_usage() {
  const auto batch = impl_->take_usage();
  const Status s = impl_->change([&](Db& db) { return write_usage(db, batch); });
  impl_->settle_usage(batch, s);
  return s;
}

Result<std::vector<UsageRow>> Catalog::usage(const std::string& tenant, const std::string& from_day, const std::string& to_day) {
  int64_t from = 0, to = INT64_MAX;
  if (!from_day.empty()) {
    CARREL_ASSIGN(from, parse_day(from_day));
  }
  if (!to_day.empty()) {
    CARREL_ASSIGN(to, parse_day(to_day));
  }
  std::vector<UsageRow> out;
  CARREL_TRY(impl_->read([&](Db& db) -> Status {
    int64_t tenant_id = -1;
    if (!tenant.empty()) {
      CARREL_ASSIGN(const TenantRow row, find_tenant(db, tenant));
      tenant_id = row.id;
    }
    CARREL_ASSIGN(
        Statement rows,
        db.query("SELECT t.name, u.key_id, u.model, u.day, u.requests, u.prompt_tokens, u.cached_tokens, u.completion_tokens "
                 "FROM usage u JOIN tenants t ON t.id = u.tenant_id WHERE (?1 < 0 OR u.tenant_id = ?1) AND u.day BETWEEN ?2 AND ?3 "
                 "ORDER BY u.day, t.name, u.key_id, u.model",
                 tenant_id, from, to));
    for (;;) {
      CARREL_ASSIGN(const bool more, rows.step());
      if (!more) return {};
      out.push_back({rows.text(0),
                     rows.text(1),
                     rows.text(2),
                     day_text(rows.integer(3)),
                     {rows.integer(4), rows.integer(5), rows.integer(6), rows.integer(7)}});
    }
  }));
  return out;
}

}  // namespace carrel
