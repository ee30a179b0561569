// What the request fuzzer does with a body, and what must hold then: every route that takes one reads it with the demo model, up to the engine.
// Shared by request_fuzz.cpp and the test that runs its corpus; linked into neither the product nor its libraries.
#pragma once
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "app/api/errors.h"
#include "app/api/generate.h"
#include "app/api/tokenize.h"
#include "app/assets/demo.h"

namespace carrel::fuzz {

/// Null when the demo model does not load.
inline const Model* demo_model() {
  static const std::unique_ptr<Model> model = [] {
    ModelLocation from;
    from.embedded = true;
    from.files = demo_model_files();
    ModelOptions options;
    options.name = kDemoModelName;
    options.ops = OpSet::kReference;
    options.threads = 1;
    auto loaded = Model::load(Env::real(), from, options);
    return loaded ? std::move(*loaded) : nullptr;
  }();
  return model.get();
}

/// A refusal is the client's and can be sent.
inline bool refused(const Error& e) {
  HttpResponse out;
  set_error(out, e, "req-1");
  return out.status >= 400 && out.status < 500 && !e.message.empty() && nlohmann::json::accept(out.body);
}

inline bool sound(const GenerateCall& call, const Model& model) {
  if (call.requests.empty() || call.n_choices == 0 || call.requests.size() % call.n_choices != 0 || call.model != model.name()) return false;
  if (!call.echoes.empty() && call.echoes.size() != call.requests.size()) return false;
  for (const Request& r : call.requests) {
    if (r.prompt.empty() || r.max_new_tokens < 1 || r.tenant != "t" || r.namespace_id != "n" || !check(r.sampling, model.graph().vocab)) return false;
    for (const int32_t id : r.prompt)
      if (id < 0 || id >= model.graph().vocab) return false;
    for (const std::string& s : r.stop)
      if (s.empty()) return false;
  }
  return true;
}

inline bool request(std::string_view bytes) {
  const Model* model = demo_model();
  if (model == nullptr) return false;
  const std::string body(bytes);
  for (const Dialect dialect : {Dialect::kChat, Dialect::kCompletion, Dialect::kInfer}) {
    const auto call = parse_generate(dialect, body, *model, {"t", "k", "n", {}}, {}, Env::real(), "req-1");
    if (call ? !sound(*call, *model) : !refused(call.error())) return false;
  }
  for (const auto& answer : {tokenize_body(body, *model, Env::real(), false), detokenize_body(body, *model, false)})
    if (answer ? !nlohmann::json::accept(answer->body) : !refused(answer.error())) return false;
  return true;
}

}  // namespace carrel::fuzz
