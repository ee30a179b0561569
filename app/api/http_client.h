// One request to a running Carrel: what commands use that ask the server of this or another machine. Never used by the server itself.
//
// Threads: any; blocks until the answer is there. The certificate is checked against the CA given, else against the system's. Errors:
// kUnavailable when nobody answers or the certificate does not fit, kInvalidArgument for an address that is none.
#pragma once
#include <string>

#include "base/error.h"

namespace carrel {

struct ClientRequest {
  std::string url;                         // https://HOST:PORT
  std::string ca_file;                     // PEM; empty: the system's
  std::string key;                         // of a tenant or of scope admin
  std::string method = "GET", path, body;  // body: JSON, for POST
  int timeout_seconds = 60;                // of silence
};

struct ClientAnswer {
  int status = 0;
  std::string body;
};

Result<ClientAnswer> ask(const ClientRequest& request);

}  // namespace carrel
