#include "app/config/schema.h"

#include <algorithm>
#include <vector>

namespace carrel {
namespace {

using enum SettingType;
using enum Takes;

constexpr Setting kSettings[] = {
    {"server.listen", kText, "127.0.0.1", "", false, kRestart, true, "Address the HTTPS API listens on; anything but loopback needs TLS."},
    {"server.port", kInteger, "8443", "0..65535", false, kRestart, true, "Port of the HTTPS API; 0 lets the system choose one."},
    {"server.tls.mode", kChoice, "internal-ca", "internal-ca|files|off", false, kRestart, true,
     "internal-ca: certificates made and renewed here; files: your own pair; off: clear text, on loopback only."},
    {"server.tls.cert", kText, "", "", false, kRestart, true, "Certificate chain (PEM) for mode files; without server.tls.key the server refuses to start."},
    {"server.tls.key", kText, "", "", false, kRestart, true, "Private key (PEM) for mode files; without server.tls.cert the server refuses to start."},
    {"server.allow", kList, "", "", false, kRestart, true, "Networks (CIDR) that may connect; empty: all."},
    {"server.max_concurrent_requests", kInteger, "64", "1..4096", false, kRestart, true, "Inference requests in work at once; more wait in the queue."},
    {"server.timeout_seconds", kInteger, "60", "1..86400", false, kNextRequest, true, "Longest time of one request from arrival to its last token."},
    {"server.strict", kFlag, "false", "", false, kNextRequest, true, "Refuse unknown request fields with 400 instead of naming them in a header."},
    {"server.admin_listen", kText, "same", "", false, kRestart, false, "Address of the management plane."},
    {"model.name", kText, "", "", false, kRestart, true, "Name that the API shows; default: the name it was imported under, or the file's."},
    {"model.path", kText, "", "", false, kRestart, true, "Model folder, GGUF file or imported name; empty: the embedded demo model."},
    {"model.attention_policy", kChoice, "auto", "auto|hybrid", false, kRestart, true,
     "auto: what the model file says; hybrid: refuse to start unless the model really mixes attention kinds."},
    {"model.max_sequence_length", kInteger, "auto", "16..16777216", true, kRestart, true, "Longest prompt plus answer in tokens; auto: the model's own."},
    {"model.quantization", kChoice, "none", "none|int8|fp8|int4", false, kRestart, false, "Quantize unquantized weights when they are loaded."},
    {"model.kv_dtype", kChoice, "auto", "auto|f32|bf16|fp8|int8|packed", false, kRestart, true, "Stored form of cache rows; auto: bf16 (fast ops) or f32. packed: the published rounding rows of deepseek_v4, other results than the plain forms. fp8 and int8 come later."},
    {"model.chat_template", kText, "", "", false, kRestart, true, "File with a chat template that replaces the model's own, or serves a model without one."},
    {"model.verify", kChoice, "full", "full|sampled", false, kRestart, true, "Check every tensor's SHA-256 before serving, or a sample now and the rest in the background."},
    {"devices.backend", kChoice, "auto", "auto|cpu|cuda", false, kRestart, true, "Where the model runs; cuda refuses to start in this version."},
    {"devices.ids", kList, "", "", false, kRestart, false, "Devices to use."},
    {"devices.threads", kInteger, "auto", "1..1024", true, kRestart, true, "Threads of the CPU back end; never changes a result."},
    {"devices.ops", kChoice, "fast", "fast|exact|reference", false, kRestart, true, "Set of kernels: fast (default), exact (float32), reference (readable, slow)."},
    {"devices.accelerator_memory_fraction", kNumber, "0.9", "0.05..1", false, kRestart, false, "Share of accelerator memory that may be used."},
    {"devices.determinism", kChoice, "strict", "strict|relaxed", false, kRestart, true, "strict: the same bits on every path. relaxed does not exist in this version and is refused."},
    {"devices.static_graph", kFlag, "true", "", false, kRestart, true, "Steps are planned once and replayed, and a plan made for another layout is refused; false does not exist and is refused."},
    {"cache.block_size", kInteger, "auto", "64..4096", true, kRestart, true, "Tokens of one block of prefix identity; auto: the smallest that fits every state of the model."},
    {"cache.prefix_reuse.enabled", kFlag, "true", "", false, kRestart, true, "Reuse the state of known prefixes; off: every prompt is computed whole."},
    {"cache.prefix_reuse.require_state_complete", kFlag, "true", "", false, kRestart, true,
     "A hit counts only when every state is restorable; false is refused, since it would allow wrong answers."},
    {"cache.prefix_reuse.shadow_verify_rate", kNumber, "0.0", "0..1", false, kRestart, true, "Share of hits that are computed again when nothing else waits, and compared."},
    {"cache.max_size_gb", kNumber, "auto", "0.01..100000", true, kRestart, true, "Memory for all cache state, in GB; auto: a quarter of the machine's memory."},
    {"cache.offload.enable", kFlag, "false", "", false, kRestart, true, "Keep state that leaves the device in lower tiers, from which it comes back whole or not at all."},
    {"cache.offload.tiers", kList, "vram,host_memory,disk", "vram|host_memory|disk", false, kRestart, true, "Tiers, fastest first."},
    {"cache.offload.threshold", kNumber, "0.85", "0.1..1", false, kRestart, true, "Fill level of device memory above which what would be evicted next is copied down, too."},
    {"cache.offload.host_memory_size", kSize, "32GB", "", false, kRestart, true, "Size of the host memory tier; at most half of the machine's memory."},
    {"cache.offload.disk_size", kSize, "100GB", "", false, kRestart, true, "Size of the disk tier; 1 GB of the file system is left to others."},
    {"cache.offload.path", kText, "", "", false, kRestart, true, "Folder of the disk tier; empty: extents in the data folder."},
    {"cache.offload.ttl_hours", kInteger, "168", "1..87600", false, kRestart, true, "Age after which unused state is dropped from disk."},
    {"cache.offload.encrypt", kFlag, "true", "", false, kRestart, true, "Seal state in host memory and on disk under the tenant's own key."},
    {"cache.offload.restore_deadline_ms", kInteger, "auto", "1..600000", true, kRestart, true, "Longest wait for a restore before the prefix is computed again; auto: 5000."},
    {"scheduler.max_batch_size", kInteger, "32", "1..4096", false, kRestart, true, "Sequences that advance in one step."},
    {"scheduler.max_num_seqs", kInteger, "256", "1..65536", false, kRestart, true, "Sequences in work at once."},
    {"scheduler.prefill_chunk", kInteger, "auto", "1..65536", true, kRestart, true, "Prompt tokens of one step; larger is faster, smaller lets others in sooner."},
    {"scheduler.policy", kChoice, "fair", "fair", false, kRestart, true, "Order of waiting requests: fair between tenants."},
    {"admission.max_queue_depth", kInteger, "512", "0..1000000", false, kRestart, true, "Requests that may wait; more are refused with 503 at once."},
    {"admission.queue_timeout_seconds", kInteger, "60", "1..86400", false, kNextRequest, true, "Longest wait in the queue."},
    {"observe.log_level", kChoice, "info", "trace|debug|info|warn|error|off", false, kRestart, true, "Least severity that is logged."},
    {"observe.log_format", kChoice, "text", "text|json", false, kRestart, true, "One line per event, for people or for machines."},
    {"observe.metrics", kFlag, "true", "", false, kRestart, true, "Serve /metrics to loopback and to keys with metrics:read."},
    {"observe.alerts", kSection, "", "", false, kRestart, false, "Whom to tell when something is wrong."},
    {"lifecycle.canary", kSection, "", "", false, kRestart, false, "How a new release is tried on a share of the requests first."},
    {"lifecycle.keep_versions_days", kInteger, "7", "0..3650", false, kRestart, false, "Days that an old release is kept for rollback."},
};

constexpr Alias kAliases[] = {
    {"model.attention_type", "model.attention_policy"},
    {"model.cache_policy", "cache.offload.enable"},
    {"server.max_batch_size", "scheduler.max_batch_size"},
    {"resources.accelerator_memory_fraction", "devices.accelerator_memory_fraction"},
    {"resources.host_memory_cache_size", "cache.offload.host_memory_size"},
    {"inference_engine.model_path", "model.path"},
    {"inference_engine.max_context_length", "model.max_sequence_length"},
    {"inference_engine.quantization", "model.quantization"},
    {"kv_cache_config.enable_paged_attention", ""},
    {"kv_cache_config.offload_to_cpu", "cache.offload.enable"},
    {"kv_cache_config.cpu_offload_threshold", "cache.offload.threshold"},
    {"kv_cache_config.max_cache_size_gb", "cache.max_size_gb"},
    {"scheduler.timeout_seconds", "server.timeout_seconds"},
};

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); j++) row[j] = j;
  for (size_t i = 1; i <= a.size(); i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); j++) {
      const size_t up = row[j];
      row[j] = std::min({up + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = up;
    }
  }
  return row[b.size()];
}

std::string_view leaf(std::string_view key) { return key.substr(key.rfind('.') + 1); }

}  // namespace

std::span<const Setting> settings() { return kSettings; }
std::span<const Alias> aliases() { return kAliases; }

const Setting* find_setting(std::string_view key) {
  const auto at = std::find_if(std::begin(kSettings), std::end(kSettings), [&](const Setting& s) {
    return s.key == key || (s.type == kSection && key.starts_with(s.key) && key[s.key.size()] == '.');
  });
  return at == std::end(kSettings) ? nullptr : at;
}

std::string members_of(std::string_view section) {
  std::vector<std::string_view> names;
  for (const Setting& s : kSettings) {
    if (section.empty() || s.key.size() <= section.size() || !s.key.starts_with(section) || s.key[section.size()] != '.') continue;
    const std::string_view rest = s.key.substr(section.size() + 1);
    const std::string_view name = rest.substr(0, rest.find('.'));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::string out;
  for (const std::string_view name : names) out += (out.empty() ? "" : ", ") + std::string(name);
  return out;
}

std::string_view to_string(SettingType type) {
  switch (type) {
    case kFlag: return "true|false";
    case kInteger: return "integer";
    case kNumber: return "number";
    case kText: return "text";
    case kChoice: return "one of";
    case kSize: return "size (MB, GB, GiB …)";
    case kList: return "list";
    case kSection: return "section";
  }
  return "";
}

std::string_view to_string(Takes takes) { return takes == kRestart ? "restart" : takes == kNextRequest ? "next request" : "now"; }

std::string nearest_word(std::string_view word, std::span<const std::string> known) {
  if (word.size() > 200) return {};
  std::string best;
  size_t least = word.size() / 2 + 1;
  for (const std::string& k : known)
    if (const size_t d = edit_distance(word, k); d < least) least = d, best = k;
  return best;
}

std::string nearest_key(std::string_view key) {
  if (key.size() > 200) return {};
  std::string_view best;
  size_t least = key.size() / 2 + 1;
  for (const Setting& s : kSettings) {
    // A key in the wrong section is as near as a misspelt one.
    const size_t d = std::min(edit_distance(key, s.key), leaf(key) == leaf(s.key) ? size_t{1} : key.size());
    if (d < least) least = d, best = s.key;
  }
  return std::string(best);
}

}  // namespace carrel
