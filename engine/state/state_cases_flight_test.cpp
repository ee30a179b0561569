// A sequence ends while the next step has its pages already: whoever gets the freed pages must not meet the step that is still to come.
#include <gtest/gtest.h>

#include <set>

#include "engine/state/state_sim.h"

namespace carrel {
namespace {

using namespace sim;

/// Addresses of all pages that a sequence holds, which has reserved so many tokens more than it has.
std::set<const std::byte*> pages_of(const StateManager& m, const Reader& r, int64_t n_reserved) {
  std::set<const std::byte*> out;
  const ModelState& model = m.config().model;
  const int64_t n_blocks = (r.seq.n_past() + n_reserved + model.block_size - 1) / model.block_size;
  for (size_t g = 0; g < model.groups.size(); g++)
    for (int64_t b = 0; b < n_blocks; b++)
      if (const std::byte* page = r.seq.pages()[g][b]; page != nullptr) out.insert(page);
  return out;
}

size_t n_shared(const std::set<const std::byte*>& a, const std::set<const std::byte*>& b) {
  return static_cast<size_t>(std::count_if(a.begin(), a.end(), [&](const std::byte* p) { return b.contains(p); }));
}

// Elsewhere a request finished at step N with step N+1 in flight, its blocks went to a new owner, and the stale step wrote into them. Steps
// come one at a time here, so the nearest that can happen: a sequence ends (cancelled, with pages reserved for a step that never comes)
// between another's reserve and that one's step, and a new owner reserves and computes in between.
TEST(Cases, case_state_b9) {
  for (const ModelState& model : {v4_like(), demo_like(), gemma_like(), plain(), mistral_like(), qwen_like(), lfm_like()}) {
    SCOPED_TRACE(page_layout_id(model));
    const int64_t block = model.block_size, n = 3 * block + block / 2;
    size_t budget = 8 * model.slot_bytes + 4096;  // two sequences and the pages that publish: a third lives on what the second leaves
    for (const StateSpec& g : model.groups) budget += 10 * page_bytes(g, block);
    auto m = make(config_of(model, budget));
    AdmitRequest ask_a, ask_b, ask_c;
    const auto a = text(n, 1), b = text(n, 2), c = text(n, 3);
    ask_a = ask(a), ask_b = ask(b), ask_c = ask(c);
    ask_b.store = false;  // nothing of it stays: its pages are free the moment that it ends

    auto first = start(*m, ask_a), second = start(*m, ask_b);
    ASSERT_TRUE(first && second);
    ASSERT_TRUE(first->step(block + 3));
    ASSERT_TRUE(second->step(2 * block + 5));
    ASSERT_TRUE(second->seq.reserve(block));  // step N+1 of the one that ends
    ASSERT_TRUE(first->seq.reserve(block));   // and of the one that goes on
    const auto reserved = pages_of(*m, *first, block), freed = pages_of(*m, *second, block);
    ASSERT_EQ(n_shared(reserved, freed), 0u);
    second.reset();

    auto third = start(*m, ask_c);
    ASSERT_TRUE(third);
    ASSERT_TRUE(third->step(2 * block + 9));
    const auto taken = pages_of(*m, *third, 0);
    EXPECT_GT(n_shared(taken, freed), 0u) << "the new owner must get pages of the one that ended, or this proves nothing";
    EXPECT_EQ(n_shared(taken, reserved), 0u) << "pages of a step that is still to come were given away";
    EXPECT_EQ(pages_of(*m, *first, block), reserved) << "pages moved between reserve and step";

    ASSERT_TRUE(first->step(block)) << "the step that was in flight";
    EXPECT_TRUE(third->verify()) << "it wrote into the new owner's pages";
    EXPECT_EQ(m->verify(), 0);
    EXPECT_EQ(first->finish(block / 2), "");
    EXPECT_EQ(third->finish(block / 2), "");
    EXPECT_EQ(m->verify(), 0);
    EXPECT_EQ(m->check_invariants(), "");
    EXPECT_EQ(m->stats().digest_mismatches, 0u);
    first.reset(), third.reset();
    EXPECT_EQ(serve(*m, ask_a).effective, 3 * block) << "what was published is what the next one reads";
    EXPECT_EQ(serve(*m, ask_b).nominal, 0) << "nothing of the one that ended is known";
  }
}

}  // namespace
}  // namespace carrel
