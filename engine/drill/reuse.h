// How much of a prompt that begins like earlier ones is really skipped, in the shapes that applications have: one system prompt and many
// questions, a growing chat, a branch at a message, a branch inside of one. Held against the promise of docs/state.md.
//
// Threads, memory: as drill.h.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace carrel {

class Model;

/// One prompt of a scenario.
struct ReuseRow {
  std::string scenario;
  int sighting = 0;  // which time this prefix is seen (a chat: the turn)
  int64_t prompt_tokens = 0;
  int64_t shared_tokens = 0;  // of these, known from earlier prompts and answers
  int64_t nominal = 0, effective = 0;
  int64_t promised = 0;  // least effective hit
  std::string veto;      // kind and position of what shortened the match
  bool kept() const { return effective >= promised && nominal >= promised; }
};

constexpr int kChatTurns = 40;

/// Runs all scenarios on private state and kernels. kUnsupported: the model's context is too short for them.
Result<std::vector<ReuseRow>> measure_reuse(const Model& model);

}  // namespace carrel
