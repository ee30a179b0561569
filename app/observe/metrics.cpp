#include "app/observe/metrics.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace carrel {
namespace {

using enum MetricType;

constexpr MetricInfo kTable[] = {
    {"carrel_requests_total", kCounter, "Requests by tenant, route and status."},
    {"carrel_queue_depth", kGauge, "Requests that wait for a place."},
    {"carrel_running_sequences", kGauge, "Requests in work."},
    {"carrel_queue_seconds", kHistogram, "Time from arrival to admission."},
    {"carrel_ttft_seconds", kHistogram, "Time from arrival to the first token."},
    {"carrel_inter_token_seconds", kHistogram, "Time between tokens of one answer (mean per request)."},
    {"carrel_request_seconds", kHistogram, "Time from arrival to the end of the answer."},
    {"carrel_prompt_tokens_total", kCounter, "Tokens of prompts."},
    {"carrel_completion_tokens_total", kCounter, "Tokens generated."},
    {"carrel_matched_tokens_total", kCounter, "Prompt tokens whose prefix was known (nominal match)."},
    {"carrel_effective_tokens_total", kCounter, "Prompt tokens whose computation was skipped (effective hit)."},
    {"carrel_hit_tokens_total", kCounter,
     "Hit tokens by class: nominal, effective_resident, effective_restored (brought back from a lower tier), replayed."},
    {"carrel_state_veto_total", kCounter, "Matches that a state kind shortened."},
    {"carrel_state_restore_failures_total", kCounter,
     "Records whose copy in a lower tier was not what was sealed, by kind; any is an alert."},
    {"carrel_state_captures_total", kCounter, "State points of recurrent groups: kept, or skipped for want of space."},
    {"carrel_state_check_failures_total", kCounter, "Hits refused by one of the four checks."},
    {"carrel_digest_mismatch_total", kCounter, "Recomputed blocks whose bits differ from the stored ones; must stay 0."},
    {"carrel_shadow_verify_total", kCounter, "Answered hits kept for computing again: sampled, verified, mismatch (any is an alert), dropped."},
    {"carrel_state_bytes", kGauge, "Bytes of cache state by group."},
    {"carrel_state_records", kGauge, "Records of cache state by group."},
    {"carrel_tier_watermark_ratio", kGauge, "Share of a tier that is in use."},
    {"carrel_tier_bytes", kGauge, "Bytes in use of a tier, evictable ones included."},
    {"carrel_evictions_total", kCounter, "Records of the device, and blocks of a lower tier, dropped to make room."},
    {"carrel_offloaded_extents_total", kCounter, "Extents kept by a lower tier."},
    {"carrel_offload_queue", kGauge, "Extents that are due to be copied down."},
    {"carrel_offload_dropped_total", kCounter, "Parts of blocks evicted from the device before they were copied, although worth keeping."},
    {"carrel_offload_write_failures_total", kCounter, "Extents that a lower tier did not take: no space, an error of the device, a purge."},
    {"carrel_restored_records_total", kCounter, "Records brought back from a lower tier."},
    {"carrel_restore_bytes_total", kCounter, "Bytes of these."},
    {"carrel_restore_seconds_total", kCounter, "From the plan of a restore to its pages, by the slowest tier that took part."},
    {"carrel_restores_total", kCounter, "Restores that failed (the prefix was computed again, or matched shorter), or were declined because computing again was quicker."},
    {"carrel_restore_failed_tokens_total", kCounter, "Tokens of prefixes whose restore failed."},
    {"carrel_drill_runs_total", kCounter, "Drills run through the API, by drill and verdict; any that failed is an alert."},
    {"carrel_engine_steps_total", kCounter, "Steps of the engine."},
    {"carrel_engine_step_seconds_total", kCounter, "Time spent in steps."},
    {"carrel_graph_plans_total", kCounter, "Steps of a new size that were planned."},
    {"carrel_graph_recompiles_total", kCounter,
     "Times that the whole graph was planned anew, because the layout or epoch of the states changed."},
    {"carrel_graph_refused_total", kCounter, "Steps refused because the graph was planned for another layout (stale-graph); must stay 0."},
    {"carrel_engine_heartbeat_age_seconds", kGauge, "Time since the step thread last came round."},
    {"carrel_preemptions_total", kCounter, "Running requests that gave their space back for a while."},
    {"carrel_inert_cache_alarm", kGauge, "1 when many prompts were known and none could be used."},
    {"carrel_db_wal_bytes", kGauge, "Size of the catalog's write-ahead log."},
    {"carrel_audit_head_seq", kGauge, "Number of the newest audit entry."},
    {"carrel_audit_write_seconds", kHistogram, "Time until a change of this process and its audit entry were durable."},
    {"carrel_cert_not_after_seconds", kGauge, "Unix time at which the server certificate ends."},
    {"carrel_build_info", kGauge, "Constant 1 with version and numerics id."},
};

const MetricInfo& find(std::string_view name, MetricType type) {
  const auto at = std::find_if(std::begin(kTable), std::end(kTable), [&](const MetricInfo& m) { return m.name == name; });
  if (at == std::end(kTable) || (at->type == kHistogram) != (type == kHistogram)) abort();
  return *at;
}

std::string number(double x) {  // never through a locale
  char text[64];
  const auto [end, ec] = std::to_chars(text, text + sizeof text, x);
  return std::string(text, ec == std::errc{} ? end : text);
}

std::string escape(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out.push_back('\\');
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    out.push_back(c);
  }
  return out;
}

}  // namespace

std::span<const MetricInfo> metric_table() {
  return kTable;
}

std::string metrics_markdown() {
  std::string out =
      "# Metrics\n\nMade from the table in `app/observe/metrics.cpp`; a test holds both equal. `GET /metrics` serves them as Prometheus "
      "text, to loopback and to keys of scope\n"
      "`metrics:read`. Names are API: they do not change. Histograms are in seconds, with buckets from 1 ms to 120 s.\n\n| name | type | "
      "what it is |\n|---|---|---|\n";
  for (const MetricInfo& m : kTable)
    out += "| `" + std::string(m.name) + "` | " +
           (m.type == kCounter ? "counter"
            : m.type == kGauge ? "gauge"
                               : "histogram") +
           " | " + std::string(m.help) + " |\n";
  return out;
}

std::string Metrics::key(const Labels& labels) {
  std::string out;
  for (const auto& [name, value] : labels) {
    std::string v = value;
    if (name == "tenant" && !tenants_.contains(v)) {
      if (tenants_.size() < 200)
        tenants_.insert(v);
      else
        v = "other";
    }
    out += (out.empty() ? "" : ",") + name + "=\"" + escape(v) + "\"";
  }
  return out;
}

void Metrics::add(std::string_view counter, const Labels& labels, double amount) {
  find(counter, kCounter);
  std::lock_guard lock(mu_);
  values_[std::string(counter)][key(labels)] += amount;
}

void Metrics::set(std::string_view name, const Labels& labels, double value) {
  find(name, kGauge);
  std::lock_guard lock(mu_);
  values_[std::string(name)][key(labels)] = value;
}

void Metrics::observe(std::string_view histogram, double seconds) {
  find(histogram, kHistogram);
  const size_t bucket = static_cast<size_t>(std::lower_bound(kBuckets.begin(), kBuckets.end(), seconds) - kBuckets.begin());
  std::lock_guard lock(mu_);
  Histogram& h = histograms_[std::string(histogram)];
  h.counts[bucket]++;
  h.sum += seconds;
}

double Metrics::quantile(std::string_view histogram, double q) const {
  std::lock_guard lock(mu_);
  const auto at = histograms_.find(histogram);
  if (at == histograms_.end()) return 0;
  uint64_t total = 0, seen = 0;
  for (const uint64_t n : at->second.counts) total += n;
  for (size_t i = 0; i < at->second.counts.size(); i++) {
    seen += at->second.counts[i];
    if (total > 0 && static_cast<double>(seen) >= q * static_cast<double>(total)) return kBuckets[std::min(i, kBuckets.size() - 1)];
  }
  return 0;
}

std::string Metrics::prometheus() const {
  std::lock_guard lock(mu_);
  std::string out;
  for (const MetricInfo& m : kTable) {
    const std::string name(m.name);
    const auto head = [&](const char* type) {
      out += "# HELP " + name + " " + std::string(m.help) + "\n# TYPE " + name + " " + type + "\n";
    };
    if (m.type == kHistogram) {
      const auto at = histograms_.find(m.name);
      const Histogram h = at == histograms_.end() ? Histogram{} : at->second;
      head("histogram");
      uint64_t sum = 0;
      for (size_t i = 0; i <= kBuckets.size(); i++) {
        sum += h.counts[i];
        out += name + "_bucket{le=\"" + (i < kBuckets.size() ? number(kBuckets[i]) : std::string("+Inf")) + "\"} " + std::to_string(sum) +
               "\n";
      }
      out += name + "_sum " + number(h.sum) + "\n" + name + "_count " + std::to_string(sum) + "\n";
      continue;
    }
    const auto at = values_.find(m.name);
    if (at == values_.end()) continue;
    head(m.type == kCounter ? "counter" : "gauge");
    for (const auto& [labels, value] : at->second) out += name + (labels.empty() ? "" : "{" + labels + "}") + " " + number(value) + "\n";
  }
  return out;
}

}  // namespace carrel
