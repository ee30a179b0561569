// Known faults of other engines (cases_state), as far as they concern the state manager alone. Each test also asserts the counter that
// shows that the feature was at work.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <set>

#include "base/env.h"
#include "engine/state/match.h"
#include "engine/state/state_sim.h"

namespace carrel {
namespace {

using namespace sim;

uint64_t vetoes(const StateManager& m, StateKind kind) {
  return m.stats().vetoes[static_cast<size_t>(kind)];
}

/// Three groups that can serve 512 tokens, `second` and `third` tokens: the hit for every order of the groups.
void expect_hit_in_every_order(StateKind kind, int64_t second, int64_t third, int64_t expected) {
  std::vector<std::string> names = {"first", "second", "third"};
  do {
    std::vector<StateSpec> groups;
    for (const auto& n : names) groups.push_back(group(n, kind, 1, 1, 1, kind == StateKind::kWindow ? 4096 : 0));
    auto m = make(config_of(model_of(groups)));
    const auto a = text(513);
    serve(*m, ask(a));
    if (second < 512) {
      ASSERT_TRUE(m->evict_for_test(ask(a), second / 64, "second"));
    }
    if (third < 512) {
      ASSERT_TRUE(m->evict_for_test(ask(a), third / 64, "third"));
    }
    const Match match = serve(*m, ask(a));
    EXPECT_EQ(match.nominal, 512);
    EXPECT_EQ(match.effective, expected) << names[0] << names[1] << names[2];
    EXPECT_EQ(vetoes(*m, kind), 1u) << "one request, one veto of the kind";
  } while (std::next_permutation(names.begin(), names.end()));
}

TEST(Cases, case_state_a12) {
  for (const StateKind kind : {StateKind::kCompressedKv, StateKind::kWindow}) {
    expect_hit_in_every_order(kind, 384, 0, 0);
    expect_hit_in_every_order(kind, 384, 448, 384);
  }
}

TEST(Cases, case_state_a13) {
  const auto shared = text(1500, 1);
  const std::vector<int64_t> boundaries = {1500};  // registers are kept where a message ends
  for (const ModelState& model : {v4_like(), gemma_like(), plain(), mistral_like(), qwen_like(), lfm_like()}) {
    size_t block_bytes = 0;
    for (const StateSpec& g : model.groups) block_bytes += page_bytes(g, model.block_size);
    for (const bool pressure : {false, true}) {
      auto m = make(config_of(model, pressure ? block_bytes * static_cast<size_t>(4000 / model.block_size) + 4096 : size_t{64} << 20));
      const int64_t promised = 1500 / model.block_size * model.block_size;
      for (uint64_t i = 0; i < 64; i++) {
        const auto prompt = join(shared, text(700, 100 + i));
        AdmitRequest r = ask(prompt);
        r.boundaries = boundaries;
        const Match match = serve(*m, r, 128);
        if (i >= 2) {
          EXPECT_GE(match.effective, promised) << i << (pressure ? " under pressure" : "");
        }
      }
      const StateStats s = m->stats();
      EXPECT_GE(s.effective_tokens, static_cast<uint64_t>(62 * promised));
      EXPECT_EQ(s.evicted > 0, pressure);
    }
  }
}

TEST(Cases, case_state_a14) {
  StateConfig c = config_of(v4_like());
  c.max_sequence_tokens = 100;
  auto m = make(c);
  ASSERT_EQ(m->warnings().size(), 1u);
  EXPECT_NE(m->warnings()[0].find("no prefix can ever be reused"), std::string::npos);
  c.max_sequence_tokens = 129;
  m = make(c);
  EXPECT_TRUE(m->warnings().empty());
  const auto a = text(129);
  serve(*m, ask(a));
  EXPECT_EQ(serve(*m, ask(a)).effective, 128) << "the shortest length that is promised to hit";
  EXPECT_EQ(m->stats().effective_tokens, 128u);
  c.budget_bytes = 1000;
  auto none = StateManager::create(c);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kInvalidArgument);
}

TEST(Cases, case_state_a15) {
  auto m = make(config_of(v4_like()));
  ASSERT_EQ(m->config().model.block_size, 128);
  const auto shared = text(300, 1);
  serve(*m, ask(join(shared, text(50, 2))));
  const Match match = serve(*m, ask(join(shared, text(50, 3))));
  EXPECT_EQ(match.effective, 256);
  EXPECT_EQ(match.nominal, 256);
  EXPECT_EQ(m->stats().effective_tokens, 256u);
}

TEST(Cases, case_state_a17) {
  auto m = make(config_of(gemma_like()));
  const auto branch = text(10'001, 1);  // 156 blocks of 64; a window of 512 is 8 of them
  serve(*m, ask(branch));
  const int64_t whole = 9984;
  for (int i = 0; i < 156 - 8; i++) {
    ASSERT_TRUE(m->evict_one_for_test());
    EXPECT_EQ(m->explain(ask(branch)).effective, whole) << "the last window goes last; evicted so far: " << i + 1;
  }
  EXPECT_EQ(m->stats().groups[1].n_resident, 8);
  EXPECT_EQ(m->stats().groups[0].n_resident, 156);
  while (m->evict_one_for_test()) {
    const Match e = m->explain(ask(branch));
    EXPECT_TRUE(e.effective == e.nominal || !e.vetoes.empty()) << "a hit is whole or explained";
  }
  EXPECT_EQ(m->stats().evicted, 2u * 156u);
}

TEST(Cases, case_state_a18) {
  const ModelState model = mistral_like();
  auto m = make(config_of(model, page_bytes(model.groups[0], 64) * 12));
  const auto a = text(64 * 8 + 5, 1);  // far longer than the window of 16
  serve(*m, ask(a), 50);
  for (uint64_t i = 0; i < 30; i++) {
    serve(*m, ask(text(200, 10 + i)), 50);
    EXPECT_EQ(m->check_invariants(), "") << "a page has two owners";
  }
  EXPECT_GT(m->stats().evicted, 0u);
  const Match match = serve(*m, ask(a), 50);  // the reader inside compares every row with a cold run's
  EXPECT_EQ(match.effective % 64, 0);
  EXPECT_EQ(serve(*m, ask(a), 50).effective, 512);
  EXPECT_EQ(m->stats().digest_mismatches, 0u);
}

TEST(Cases, case_state_a21) {
  auto m = make(config_of(v4_like()));
  const auto a = text(128 * 4 + 1);
  serve(*m, ask(a));
  // At a multiple of 128 the frontier of the 128x rows is empty: the model declares no such register, and the hit is whole without one.
  const auto& groups = m->config().model.groups;
  EXPECT_EQ(std::count_if(groups.begin(), groups.end(), [](const StateSpec& g) { return g.kind == StateKind::kTail; }), 1);
  EXPECT_EQ(m->explain(ask(a)).effective, 512);
  // The overlap of the 4x rows is required, at the point itself and nowhere else.
  ASSERT_TRUE(m->evict_for_test(ask(a), 1, "csa.tail"));
  EXPECT_EQ(m->explain(ask(a)).effective, 512);
  ASSERT_TRUE(m->evict_for_test(ask(a), 3, "csa.tail"));
  const Match match = serve(*m, ask(a));
  EXPECT_EQ(match.effective, 384);
  EXPECT_EQ(match.vetoes.at(0).group, "csa.tail");
  EXPECT_EQ(vetoes(*m, StateKind::kTail), 1u);
}

TEST(Cases, case_state_b10) {
  const ModelState model = model_of({group("kv", StateKind::kCompressedKv, 1, 1, 1), group("window", StateKind::kWindow, 1, 1, 1, 300),
                                     group("index", StateKind::kIndexer, 4, 1, 1)});
  size_t block_bytes = 0;
  for (const StateSpec& g : model.groups) block_bytes += page_bytes(g, 64);
  const auto a = text(64 * 4 + 10, 1);
  auto m = make(config_of(model, block_bytes * 5));
  serve(*m, ask(a));
  {
    auto exact = start(*m, ask(a));
    EXPECT_EQ(exact->seq.match().effective, 256) << "exactly enough: all hits of all groups survive the allocation";
    EXPECT_EQ(exact->finish(), "");
  }
  EXPECT_EQ(m->stats().evicted, 0u);
  const auto b = text(20, 2);
  auto other = start(*m, ask(b, "b"));
  auto refused = m->admit(ask(a));
  ASSERT_FALSE(refused) << "one block too few: refused whole";
  EXPECT_EQ(refused.error().code, Code::kExhausted);
  StateStats s = m->stats();
  EXPECT_EQ(s.rolled_back, 1u);
  for (const auto& g : s.groups) EXPECT_EQ(g.n_leased, 0) << "pins were given back";
  EXPECT_EQ(s.evicted, 0u) << "no group's allocation took another group's hit";
  EXPECT_EQ(m->explain(ask(a)).effective, 256);
  other.reset();
  EXPECT_EQ(serve(*m, ask(a)).effective, 256);
}

TEST(Cases, case_state_b11) {
  StateConfig c = config_of(demo_like());
  c.audit = true;  // counts every lease after every transition
  auto m = make(c);
  const auto a = text(64 * 6, 1);
  serve(*m, ask(a));
  Dice dice(3);
  std::vector<Sequence> live;
  int64_t most = 0;
  for (int i = 0; i < 400; i++) {
    if (live.size() < 20 && dice.percent(55)) {
      const auto prompt = join(std::vector<int32_t>(a.begin(), a.begin() + 64 * dice.below(6)), text(9, 50 + static_cast<uint64_t>(i)));
      auto admission = m->admit(ask(prompt));
      ASSERT_TRUE(admission && admission->sequence);
      live.push_back(std::move(*admission->sequence));
    } else if (!live.empty()) {
      std::swap(live[static_cast<size_t>(dice.below(static_cast<int64_t>(live.size())))], live.back());
      live.pop_back();
    }
    most = std::max(most, m->stats().groups[1].n_leased);
  }
  EXPECT_GT(most, 0);
  live.clear();
  for (const auto& g : m->stats().groups) EXPECT_EQ(g.n_leased, 0);
}

TEST(Cases, case_state_b33) {
  Dice dice(1);
  std::set<std::string> seen;
  std::set<std::vector<std::string>> lists;
  for (int i = 0; i < 20'000; i++) {
    std::vector<std::string> fields(1 + static_cast<size_t>(dice.below(4)));
    for (auto& f : fields) f.assign(static_cast<size_t>(dice.below(4)), static_cast<char>('a' + dice.below(2)));
    if (!lists.insert(fields).second) continue;
    std::vector<std::string_view> views(fields.begin(), fields.end());
    EXPECT_TRUE(seen.insert(join_fields("d", views)).second) << "two lists of fields give one message";
  }
  EXPECT_GT(seen.size(), 500u);
  const std::string_view one[] = {"ab"}, two[] = {"a", "b"};
  EXPECT_NE(join_fields("d", one), join_fields("d", two));
  EXPECT_NE(join_fields("da", one), join_fields("d", one));
  // Numerics id and row layout id cannot trade places.
  EXPECT_NE(key_context(Digest{}, "x", "y"), key_context(Digest{}, "y", "x"));
  EXPECT_NE(key_context(Digest{}, "xy", ""), key_context(Digest{}, "x", "y"));
}

TEST(Cases, case_state_c2) {
  auto m = make(config_of(v4_like()));
  const auto a = text(500);
  serve(*m, ask(a, "tenant-1"));
  EXPECT_EQ(serve(*m, ask(a, "tenant-1")).effective, 384) << "the same tenant hits";
  const Match other = serve(*m, ask(a, "tenant-2"));
  EXPECT_EQ(other.nominal, 0) << "another does not even match";
  EXPECT_EQ(m->stats().effective_tokens, 384u);
}

TEST(Cases, case_state_c6) {
  for (const int bits : {0, 2, 6}) {
    StateConfig c = config_of(demo_like());
    c.key_fn = [bits](const Digest& secret, const Digest& context, const Digest* parent, std::span<const int32_t> tokens) {
      const Digest real = block_key(secret, context, parent, tokens);
      Digest shortened{};
      shortened[0] = real[0] & static_cast<std::byte>((1 << bits) - 1);
      return shortened;
    };
    auto m = make(c);
    for (uint64_t i = 0; i < 40; i++) {
      const auto a = text(300, 1 + i % 10);
      const Match match = serve(*m, ask(a, i % 2 != 0 ? "a" : "b"));  // the reader compares every row
      if (i < 10) {
        EXPECT_EQ(match.effective, 0) << "nothing of these tokens was published yet";
      }
    }
    EXPECT_GT(m->stats().key_collisions, 0u) << bits;
    EXPECT_EQ(m->stats().digest_mismatches, 0u) << "no other prefix was taken for this one";
  }
}

TEST(Cases, case_state_c7) {
  auto files = Env::real()->list("engine/state");
  if (!files) {
    std::cout << "skipped: the sources are not here; run the test in the root of the repository\n";
    GTEST_SKIP();
  }
  int n_read = 0;
  for (const std::string& name : *files) {
    const bool source = name.ends_with(".cpp") || name.ends_with(".h");
    if (!source || name.find("_test") != std::string::npos || name.find("_sim") != std::string::npos) continue;
    auto content = read_file(Env::real(), "engine/state/" + name);
    ASSERT_TRUE(content);
    n_read++;
    std::transform(content->begin(), content->end(), content->begin(),
                   [](unsigned char ch) { return static_cast<char>(std::tolower(ch)); });
    for (const char* word : {"std::hash<", "crc32", "xxh", "fnv", "murmur", "cityhash", "siphash", "md5", "sha1"})
      EXPECT_EQ(content->find(word), std::string::npos) << name << " uses " << word;
  }
  EXPECT_GT(n_read, 8);
  const std::string message =
      join_fields("carrel block 1",
                  std::vector<std::string_view>{std::string_view("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 32),
                                                "", std::string_view("\1\0\0\0\2\1\0\0", 8)});
  const int32_t tokens[] = {1, 258};
  EXPECT_EQ(block_key(secret_of("a"), Digest{}, nullptr, tokens), hmac_sha256(secret_of("a"), std::as_bytes(std::span(message))));
}

TEST(StateSpeed, MatchingALongPromptIsLinear) {
  StateConfig c = config_of(v4_like(), size_t{256} << 20);
  c.audit = c.poison = false;
  auto m = make(c);
  const auto a = text(128 * 1000 + 1);
  serve(*m, ask(a), 4096);
  BlockKeys keys;
  AdmitRequest r = ask(a);
  r.keys = &keys;
  m->explain(r);
  int64_t best = INT64_MAX;
  for (int i = 0; i < 20; i++) {
    const int64_t t = Env::real()->mono_ns();
    EXPECT_EQ(m->explain(r).effective, 128'000);
    best = std::min(best, Env::real()->mono_ns() - t);
  }
  std::cout << "match and checks of 1000 blocks of 5 groups: " << best / 1000 << " us\n";
  const int64_t t = Env::real()->mono_ns();
  BlockKeys fresh;
  r.keys = &fresh;
  m->explain(r);
  std::cout << "with their keys: " << (Env::real()->mono_ns() - t) / 1000 << " us\n";
  EXPECT_LT(best, 20'000'000) << "far above any machine's noise: the match is no longer linear";
}

}  // namespace
}  // namespace carrel
