#include "app/config/config.h"

#include <gtest/gtest.h>

namespace carrel {
namespace {

Result<Config> yaml(std::string_view text) { return Config::load(text, "t.yaml", {}, {}); }
Result<Config> seed(const std::string& name) { return Config::load(*read_file(Env::real(), "tests/config/" + name), name, {}, {}); }

bool noted(const Config& c, std::string_view part) {
  for (const std::string& n : c.notes())
    if (n.find(part) != std::string::npos) return true;
  return false;
}

TEST(Config, ATierIsNamedOnce) {
  const auto twice = Config::load("cache: {offload: {tiers: [vram, host_memory, vram]}}\n", "c.yaml", {}, {});
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().code, Code::kInvalidArgument);
  EXPECT_EQ(twice.error().text(), "c.yaml:1: cache.offload.tiers names vram twice; name each tier once, fastest first");
  EXPECT_TRUE(Config::load("cache: {offload: {tiers: [vram, host_memory]}}\n", "c.yaml", {}, {}));
}

TEST(Config, EveryDefaultPassesItsOwnCheck) {
  for (const Setting& s : settings()) {
    if (s.fallback.empty()) continue;
    auto c = Config::load("", "", {}, {{std::string(s.key), std::string(s.fallback)}});
    EXPECT_TRUE(c) << s.key << ": " << (c ? "" : c.error().text());
  }
}

TEST(Config, AliasesNameKnownSettings) {
  for (const Alias& a : aliases()) EXPECT_TRUE(a.canonical.empty() || find_setting(a.canonical) != nullptr) << a.key;
}

TEST(Config, SeedExamplesLoadAsTheyStand) {
  const Config c0 = seed("seed_000.yaml").value();
  EXPECT_EQ(c0.text("model.attention_policy"), "hybrid");
  EXPECT_EQ(c0.integer("admission.max_queue_depth"), 512);
  EXPECT_TRUE(c0.flag("cache.offload.enable"));
  EXPECT_TRUE(c0.notes().empty());

  const Config c1 = seed("seed_001.yaml").value();
  EXPECT_EQ(c1.text("model.attention_policy"), "hybrid");
  EXPECT_EQ(c1.integer("scheduler.max_batch_size"), 16);
  EXPECT_EQ(c1.integer("server.port"), 8080);
  EXPECT_TRUE(c1.flag("cache.offload.enable"));
  EXPECT_EQ(c1.list("cache.offload.tiers").size(), 3u);
  EXPECT_EQ(c1.size_bytes("cache.offload.host_memory_size"), 32'000'000'000u);
  EXPECT_TRUE(noted(c1, "model.attention_type is read as model.attention_policy"));

  const Config c2 = seed("seed_002.yaml").value();
  EXPECT_EQ(c2.text("model.path"), "/data/models/llm_weights");
  EXPECT_EQ(c2.integer("model.max_sequence_length"), 32768);
  EXPECT_EQ(c2.number("cache.max_size_gb"), 16);
  EXPECT_EQ(c2.integer("server.timeout_seconds"), 60);
  EXPECT_TRUE(noted(c2, "model.quantization is not active in this version"));
}

TEST(Config, CanonicalFormLoadsToTheSame) {
  const Config c = seed("seed_002.yaml").value();
  const Config again = yaml(c.canonical_yaml()).value();
  EXPECT_EQ(again.canonical_yaml(), c.canonical_yaml());
  EXPECT_EQ(again.number("cache.max_size_gb"), 16);
}

TEST(Config, UnknownKeyNamesTheNearest) {
  const Error e = yaml("server:\n  prot: 1\n").error();
  EXPECT_NE(e.message.find("server.port"), std::string::npos);
  EXPECT_EQ(e.where, "t.yaml:2");
  EXPECT_NE(yaml("cache: {max_queue_depth: 5}").error().message.find("admission.max_queue_depth"), std::string::npos);
}

TEST(Config, BadValuesSayWhatIsAllowed) {
  EXPECT_NE(yaml("server: {port: 70000}").error().message.find("0..65535"), std::string::npos);
  EXPECT_NE(yaml("server: {port: abc}").error().message.find("integer"), std::string::npos);
  EXPECT_NE(yaml("cache: {offload: {host_memory_size: 32 apples}}").error().message.find("size"), std::string::npos);
  EXPECT_FALSE(yaml("server: [1, 2]"));
  EXPECT_FALSE(yaml("- 1"));
  EXPECT_FALSE(yaml("server: {port: {a: 1}}"));
  EXPECT_FALSE(yaml("a: &a [*a]"));
  EXPECT_FALSE(yaml("server: {port: 1, port: 2}"));
}

TEST(Config, HalfATlsPairIsRefused) {
  EXPECT_NE(yaml("server: {tls: {mode: files, cert: a.pem}}").error().message.find("half a TLS pair"), std::string::npos);
  EXPECT_FALSE(yaml("server: {tls: {mode: files}}"));
  EXPECT_FALSE(yaml("server: {tls: {cert: a.pem, key: b.pem}}"));
  EXPECT_TRUE(yaml("server: {tls: {mode: files, cert: a.pem, key: b.pem}}"));
}

TEST(Config, WhatCannotBeHonouredIsRefused) {
  EXPECT_FALSE(yaml("kv_cache_config: {enable_paged_attention: false}"));
  EXPECT_FALSE(yaml("cache: {prefix_reuse: {require_state_complete: false}}"));
  EXPECT_FALSE(yaml("devices: {determinism: relaxed}"));
  EXPECT_FALSE(yaml("devices: {backend: cuda}"));
  EXPECT_FALSE(yaml("model: {kv_dtype: fp8}"));
  EXPECT_TRUE(yaml("model: {kv_dtype: packed}"));
}

TEST(Config, WhatTheServerWouldRefuseIsRefusedHere) {
  const auto message = [](std::string_view text) { return yaml(text) ? "" : yaml(text).error().text(); };
  EXPECT_EQ(message("server: {listen: 0.0.0.0, tls: {mode: off}}"),
            "t.yaml:1: server.tls.mode is off and server.listen is 0.0.0.0: clear text is allowed on loopback only");
  EXPECT_EQ(message("server: {listen: '::1', tls: {mode: off}}"), "");
  EXPECT_NE(message("server: {allow: [10.0.0.0/8, 10.0.0.0/64]}").find("server.allow holds 10.0.0.0/64"), std::string::npos);
  EXPECT_EQ(message("server: {allow: [10.0.0.0/8, '::1']}"), "");
  EXPECT_NE(message("cache: {block_size: 100}").find("is 100: a block is a multiple of 64"), std::string::npos);
  EXPECT_EQ(message("cache: {block_size: 128}"), "");
}

TEST(Config, ASectionIsNoValue) {
  EXPECT_NE(yaml("server: {tls: off}").error().message.find("server.tls is a section, not a value: it holds mode, cert, key"), std::string::npos);
  EXPECT_NE(yaml("server: 5").error().message.find("listen, port, tls"), std::string::npos);
  EXPECT_TRUE(yaml("server:\ncache:\n  offload:\n"));  // every line below is a comment
}

TEST(Config, EveryKeyOfALaterVersionIsReportedAsNotActive) {
  const auto c = yaml("observe: {alerts: {email: {to: [a@b.c, d@e.f]}, rules: [{when: p99, above: 5}, {when: full}]}}\nlifecycle: {canary: {share: 0.1}}");
  ASSERT_TRUE(c) << c.error().text();
  for (const char* key : {"observe.alerts.email.to", "observe.alerts.rules.1.when", "lifecycle.canary.share"})
    EXPECT_TRUE(noted(*c, std::string(key) + " is not active in this version (t.yaml:")) << key;
  EXPECT_EQ(yaml(c->canonical_yaml())->canonical_yaml(), c->canonical_yaml());
  EXPECT_TRUE(noted(*yaml("observe: {alerts: }"), "observe.alerts is not active"));
  EXPECT_TRUE(noted(*Config::load("", "", {{"CARREL_LIFECYCLE_CANARY_SHARE", "1"}}, {}), "CARREL_LIFECYCLE_CANARY_SHARE is not active"));
  EXPECT_FALSE(yaml("observe: {alerts: 5}"));
  EXPECT_FALSE(yaml("observe: {alerts: {'a.b': 5}}"));
  EXPECT_FALSE(yaml("observe: {alerts: &a [[*a]]}"));
  EXPECT_FALSE(yaml("observe: {alerts: {a: 1, a: {b: 2}}}"));
  EXPECT_FALSE(yaml("observe: {alert: {to: x}}"));
  // Each that is not active says so; none is both accepted and silent.
  for (const Setting& s : settings()) {
    if (s.active || s.fallback.empty()) continue;
    EXPECT_TRUE(noted(*Config::load("", "", {}, {{std::string(s.key), std::string(s.fallback)}}), std::string(s.key) + " is not active")) << s.key;
  }
}

TEST(Config, FlagsBeatEnvironmentBeatsFile) {
  const std::map<std::string, std::string> env{{"CARREL_SERVER_PORT", "2"}, {"CARREL_DATA", "x"}};
  EXPECT_EQ(Config::load("server: {port: 1}", "t", env, {})->integer("server.port"), 2);
  EXPECT_EQ(Config::load("server: {port: 1}", "t", env, {{"server.port", "3"}})->integer("server.port"), 3);
  EXPECT_FALSE(Config::load("", "t", {{"CARREL_SERVER_PROT", "2"}}, {}));
  EXPECT_FALSE(Config::load("", "t", {{"CARREL_CACHE_OFFLOAD_THRESHOLD", "7"}}, {}));
}

TEST(Config, DocumentationIsInStep) {
  EXPECT_EQ(*read_file(Env::real(), "docs/configuration.md"), schema_markdown()) << "run: carrel config schema --markdown > docs/configuration.md";
}

}  // namespace
}  // namespace carrel
