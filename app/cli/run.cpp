// One prompt, answered on the terminal as it comes.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/api/generate.h"
#include "app/cli/cli.h"
#include "app/lifecycle/engine_room.h"
#include "base/log.h"

namespace carrel {

int cmd_run(const RunArgs& args) {
  log_setup("warn", LogFormat::kText);
  std::map<std::string, std::string> flags;
  if (!args.model.empty()) flags["model.path"] = args.model;
  auto room = open_engine_room(Env::real(), args.common.data_dir, args.common.config_file, flags);
  if (!room) return report(room.error(), args.common);
  const Model& model = *room->model;
  const bool raw = args.raw || model.chat_template() == nullptr;
  const nlohmann::json messages = nlohmann::json::array({{{"role", "user"}, {"content", args.prompt}}});
  const auto plain = [&]() -> Result<ChatTokens> {
    ChatTokens out;
    CARREL_ASSIGN(out.tokens, model.tokenizer().encode(args.prompt, {.add_special = true, .parse_special = false}));
    return out;
  };
  auto prompt = raw ? plain() : chat_tokens(model, messages.dump(), "", true, "", Env::real()->wall_ms());
  if (!prompt) return report(prompt.error(), args.common);

  Request r;
  r.id = "run";
  r.prompt = std::move(prompt->tokens);
  r.boundaries = std::move(prompt->boundaries);
  r.tenant = r.namespace_id = "run";
  r.sampling.temperature = 0;
  r.max_new_tokens = args.max_tokens;
  auto stream = room->engine->submit(std::move(r));
  if (!stream) return report(stream.error(), args.common);
  std::string answer;
  for (;;) {
    auto event = (*stream)->next(1000);
    if (!event) continue;
    if (const Delta* d = std::get_if<Delta>(&*event)) {
      answer += d->text;
      if (!args.common.json) std::fwrite(d->text.data(), 1, d->text.size(), stdout), std::fflush(stdout);
      continue;
    }
    const Finish& f = std::get<Finish>(*event);
    if (f.reason == FinishReason::kError) return report(f.error, args.common);
    if (args.common.json)
      std::printf("%s\n", nlohmann::ordered_json{{"output", answer}, {"prompt_tokens", f.usage.prompt_tokens}, {"completion_tokens", f.usage.completion_tokens}}
                              .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                              .c_str());
    else std::printf("\n");
    return 0;
  }
}

}  // namespace carrel
