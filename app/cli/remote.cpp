#include "app/cli/remote.h"

#include <nlohmann/json.hpp>

#include "app/api/http_client.h"

namespace carrel {

namespace {

Code code_of(int status) {
  if (status == 401 || status == 403) return Code::kDenied;
  if (status == 404) return Code::kNotFound;
  if (status == 409) return Code::kAlreadyExists;
  return status >= 500 ? Code::kUnavailable : Code::kInvalidArgument;
}

std::unexpected<Error> refusal(const ClientAnswer& answer, const std::string& url) {
  std::string message = "the server answered with status " + std::to_string(answer.status);
  const auto j = nlohmann::json::parse(answer.body, nullptr, false);
  if (j.is_object() && j.contains("error") && j["error"].is_object()) message = j["error"].value("message", message);
  if (answer.status == 401 || answer.status == 403)
    message += "; `carrel key create --scope admin` makes a key for this, CARREL_KEY or --key gives it";
  return fail(code_of(answer.status), message, url);
}

}  // namespace

Result<std::string> ask_server(const ServerArgs& server, const std::string& method, const std::string& path, const std::string& body) {
  ClientRequest r;
  r.url = server.url;
  r.ca_file = server.ca;
  if (const std::string own = server.common.data_dir + "/tls/ca.pem"; r.ca_file.empty() && Env::real()->exists(own)) r.ca_file = own;
  r.key = server.key;
  r.method = method;
  r.path = path;
  r.body = body;
  CARREL_ASSIGN(ClientAnswer answer, ask(r));
  if (answer.status / 100 != 2) return refusal(answer, server.url);
  return std::move(answer.body);
}

}  // namespace carrel
