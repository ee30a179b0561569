// Faults that others shipped around registers, host memory and restores (cases_state), each with the counter that shows that reuse was on.
#include <gtest/gtest.h>

#include "engine/state/block_extent.h"
#include "engine/state/rows.h"
#include "engine/state/state_sim.h"

namespace carrel {
namespace {

using namespace sim;

StateConfig with_host(ModelState model, size_t budget = 64 << 20) {
  StateConfig c = config_of(std::move(model), budget);
  c.host_budget_bytes = 64 << 20;
  return c;
}

void offload_all(StateManager& m, const AdmitRequest& r) {
  for (const StateSpec& g : m.config().model.groups)
    for (int64_t b = 0; b < static_cast<int64_t>(r.tokens.size()) / m.config().model.block_size; b++)
      (void)m.damage_for_test(r, b, g.name, Damage::kOffload);
}

TEST(Cases, case_state_a3) {  // the window lay in a ring of the slot, and a hit from another slot read a stale one
  const auto m = make(config_of(v4_like()));
  const auto prompt = text(7700);
  const auto other = text(300, 9);
  EXPECT_EQ(serve(*m, ask(prompt)).effective, 0);
  std::vector<Reader> slots;  // so that each run gets another slot, poisoned when it was free
  for (int i = 0; i < 3; i++) {
    slots.push_back(std::move(*start(*m, ask(text(200, static_cast<uint64_t>(20 + i))))));
    const Match again = serve(*m, ask(prompt));
    EXPECT_EQ(again.effective, again.nominal);
    EXPECT_EQ(again.effective, 7680);
  }
  EXPECT_EQ(m->stats().digest_mismatches, 0u);
}

TEST(Cases, case_state_a4) {  // a stored prefix without its recurrent part was reported as whole
  const auto m = make(with_host(qwen_like()));
  const int64_t block = m->config().model.block_size, ladder = m->stats().ladder_tokens;
  ASSERT_GT(ladder, block);
  const auto prompt = text(ladder + 3 * block + 5);
  serve(*m, ask(prompt));
  offload_all(*m, ask(prompt));
  const int64_t point = (ladder + 3 * block) / block;
  EXPECT_EQ(m->explain(ask(prompt)).effective, point * block) << "whole copies are restorable";
  ASSERT_TRUE(m->damage_for_test(ask(prompt), point - 1, "delta", Damage::kDropHost));
  const Match hit = serve(*m, ask(prompt));
  EXPECT_EQ(hit.nominal, point * block);
  EXPECT_EQ(hit.effective, ladder) << "the state point before, never what the logs alone would give";
  ASSERT_EQ(hit.vetoes.size(), 1u);
  EXPECT_EQ(hit.vetoes[0].group, "delta");
  EXPECT_EQ(hit.restored, ladder);
}

TEST(Cases, case_state_a10) {  // a third kind of memory was added, and nobody wrote it out
  ModelState every = model_of({group("kv", StateKind::kCompressedKv, 1, 2, 3), group("index", StateKind::kIndexer, 4, 1, 2),
                               group("window", StateKind::kWindow, 1, 3, 2, 50), group("tail", StateKind::kTail, 0, 1, 5, 0, 4),
                               group("registers", StateKind::kRecurrent, 0, 2, 3, 0, 7)});
  ASSERT_EQ(every.groups.size(), std::size(kStateKinds)) << "this test must name every kind";
  std::vector<std::vector<std::byte>> pages;
  std::vector<ExtentSource> sources[2];
  uint8_t fill = 1;
  for (size_t g = 0; g < every.groups.size(); g++) {
    pages.emplace_back(page_bytes(every.groups[g], every.block_size));
    for (std::byte& b : pages[g]) b = std::byte{fill++};
    const RowLayout l = layout_of(every.groups[g], every.block_size);
    sources[static_cast<size_t>(set_of(every.groups[g].kind))].push_back(
        {static_cast<int>(g), pages[g].data(), digest_rows(pages[g].data(), l, every.groups[g].n_layers)});
  }
  const ExtentKey key(sha256("data key"));
  uint64_t covered = 0;
  for (const ExtentSet set : kExtentSets) {
    const BlockToOpen what{
        {sha256("key"), sha256("parent"), sha256("model"), extent_layout(every, "n"), "a", 64}, set, std::vector<int32_t>(64, 7)};
    const auto& own = sources[static_cast<size_t>(set)];
    const auto extent = seal_block(every, {what.identity, set, what.tokens, own, nullptr}, &key, 1, Env::real());
    ASSERT_TRUE(extent) << extent.error().text();
    auto opener = BlockOpener::create(every, what, extent->span(), &key);
    ASSERT_TRUE(opener) << opener.error().text();
    covered |= groups_in(*view_block(every, what, extent->span()));
    for (const ExtentSource& source : own) {
      const StateSpec& spec = every.groups[static_cast<size_t>(source.group)];
      std::vector<std::byte> back(page_bytes(spec, every.block_size));
      const auto digest = opener->open(source.group, back.data());
      ASSERT_TRUE(digest) << digest.error().text();
      EXPECT_EQ(*digest, source.digest);
      EXPECT_EQ(digest_rows(back.data(), layout_of(spec, every.block_size), spec.n_layers), source.digest);
    }
  }
  EXPECT_EQ(covered, (uint64_t{1} << every.groups.size()) - 1);
  every.groups[0].kind = static_cast<StateKind>(std::size(kStateKinds));
  const auto refused = StateManager::create(config_of(every));
  ASSERT_FALSE(refused) << "a kind that nothing carries must not start";
  EXPECT_NE(refused.error().text().find("kv"), std::string::npos);
}

TEST(Cases, case_state_a11) {  // a damaged snapshot was refused, but its bytes had already reached live state
  const auto giver = make(with_host(qwen_like()));
  const auto prompt = text(5 * 64 + 9), other = text(4 * 64 + 3, 5);
  serve(*giver, ask(prompt));
  const StateSnapshot whole = giver->snapshot(ask(prompt));
  ASSERT_GT(whole.blocks.size(), 4u);
  const auto changed = [](const std::shared_ptr<const AlignedBytes>& from, size_t at, size_t n_bytes) {
    auto copy = AlignedBytes::allocate(n_bytes);
    std::copy_n(from->data(), n_bytes, copy->data());
    if (at < n_bytes) copy->data()[at] ^= std::byte{0x10};
    return std::make_shared<const AlignedBytes>(std::move(*copy));
  };
  const size_t n = whole.blocks[0].extents[0]->size();
  int refused = 0, found = 0;
  for (size_t at = 0; at < n; at += 61) {
    const auto m = make(with_host(qwen_like()));
    serve(*m, ask(other));
    StateSnapshot damaged = whole;
    damaged.blocks[0].extents[0] = changed(whole.blocks[0].extents[0], at, n);
    const int64_t taken = m->adopt(ask(prompt), damaged);
    if (taken == 0) {
      refused++;
    } else {
      EXPECT_EQ(serve(*m, ask(prompt)).effective, 0) << "byte " << at;
      found++;
    }
    EXPECT_EQ(serve(*m, ask(other)).effective, 4 * 64);
    EXPECT_EQ(m->verify(), 0);
  }
  EXPECT_GT(refused, 0) << "heads";
  EXPECT_GT(found, 0) << "rows";
  StateSnapshot cut = whole;
  for (auto& b : cut.blocks)
    for (auto& e : b.extents) e = changed(e, e->size(), e->size() - 1);
  EXPECT_EQ(make(with_host(qwen_like()))->adopt(ask(prompt), cut), 0);
  EXPECT_EQ(make(with_host(lfm_like()))->adopt(ask(prompt), whole), 0) << "of another layout";
  EXPECT_EQ(make(with_host(qwen_like()))->adopt(ask(prompt, "b"), whole), 0) << "of another tenant";
}

TEST(Cases, case_state_a27) {  // a mode that skips no prefill: what it computes anyway is held against what is known
  const auto m = make(config_of(qwen_like()));
  const auto prompt = text(5 * 64 + 9);
  serve(*m, ask(prompt));
  AdmitRequest whole = ask(prompt);
  whole.reuse = false;
  const StateStats before = m->stats();
  EXPECT_EQ(serve(*m, whole).effective, 0);
  EXPECT_GE(m->stats().compared - before.compared, 5u);
  EXPECT_EQ(m->stats().digest_mismatches, 0u);
  EXPECT_EQ(serve(*m, ask(prompt)).effective, 5 * 64) << "and takes nothing away";
}

TEST(Cases, case_state_b8) {  // an abort while state came in freed blocks too early, twice, or never
  const auto m = make(with_host(qwen_like()));
  const auto prompt = text(5 * 64 + 9);
  serve(*m, ask(prompt));
  for (int64_t chunk : {1, 7, 64, 65, 200}) {
    offload_all(*m, ask(prompt));
    const size_t idle = m->stats().used_bytes;
    for (int64_t n_steps = 0; n_steps < 4; n_steps++) {
      auto run = start(*m, ask(prompt));
      ASSERT_TRUE(run);
      EXPECT_GT(run->seq.match().effective, 0);
      for (int64_t i = 0; i < n_steps && run->left() > 0; i++) ASSERT_TRUE(run->step(std::min(chunk, run->left())));
      run.reset();
      EXPECT_EQ(m->stats().slot_bytes, 0u);
      EXPECT_EQ(m->check_invariants(), "");
      offload_all(*m, ask(prompt));
      EXPECT_EQ(m->stats().used_bytes, idle);
    }
  }
}

TEST(Cases, case_state_b30) {  // no room for a snapshot ended the scheduler
  StateConfig c = config_of(qwen_like());
  const ModelState& model = c.model;
  const size_t log_page = page_bytes(model.groups[0], model.block_size);
  c.budget_bytes = 4 * log_page + (model.slot_bytes + 63) / 64 * 64;  // logs and the slot, not one page of registers
  c.max_step_tokens = 64;
  const auto m = make(c);
  EXPECT_EQ(serve(*m, ask(text(4 * 64 - 1)), 64).effective, 0);
  EXPECT_GT(m->stats().captures_skipped, 0u);
  EXPECT_EQ(m->stats().captured, 0u);
}

TEST(Cases, case_state_h4) {  // nobody could see that a window, not the prefix, shortened the hits
  const auto m = make(config_of(gemma_like()));
  const auto prompt = text(20 * 64 + 5);
  serve(*m, ask(prompt));
  ASSERT_TRUE(m->evict_for_test(ask(prompt), 19, "window"));
  const Match hit = serve(*m, ask(prompt));
  EXPECT_EQ(hit.nominal, 20 * 64);
  EXPECT_LT(hit.effective, hit.nominal);
  ASSERT_EQ(hit.vetoes.size(), 1u);
  EXPECT_EQ(hit.vetoes[0].kind, StateKind::kWindow);
  EXPECT_EQ(hit.vetoes[0].residency, "evicted");
  EXPECT_EQ(m->stats().vetoes[static_cast<size_t>(StateKind::kWindow)], 1u);
}

TEST(Cases, case_state_h5) {  // places that hold nothing were counted as entries
  const auto m = make(config_of(qwen_like()));
  serve(*m, ask(text(2 * 64 + 5)));
  const StateStats s = m->stats();
  EXPECT_EQ(s.groups[0].n_resident, 2);
  EXPECT_EQ(s.groups[1].n_resident, 1) << "registers at the last boundary alone";
  EXPECT_EQ(s.n_blocks, 2);
}

TEST(Cases, case_state_h6) {  // tokens counted as hits although the restore failed
  const auto m = make(with_host(plain()));
  const auto prompt = text(4 * 64 + 5);
  serve(*m, ask(prompt));
  offload_all(*m, ask(prompt));
  ASSERT_TRUE(m->damage_for_test(ask(prompt), 2, "kv", Damage::kFlipHostBit));
  const StateStats before = m->stats();
  const Match hit = serve(*m, ask(prompt));
  EXPECT_EQ(hit.effective, 2 * 64);
  EXPECT_EQ(hit.restored, 2 * 64);
  const StateStats after = m->stats();
  EXPECT_EQ(after.effective_tokens - before.effective_tokens, 128u);
  EXPECT_EQ(after.restored_tokens - before.restored_tokens, 128u);
  EXPECT_EQ(after.restore_failures[static_cast<size_t>(StateKind::kCompressedKv)], 1u);
  ASSERT_EQ(hit.vetoes.size(), 1u);
  EXPECT_EQ(hit.vetoes[0].residency, "quarantined");
}

}  // namespace
}  // namespace carrel
