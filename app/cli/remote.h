// Commands that ask a running server through its management plane.
#pragma once
#include <string>

#include "app/cli/cli.h"

namespace carrel {

/// The body of a 2xx answer; else the server's own error, with its message.
Result<std::string> ask_server(const ServerArgs& server, const std::string& method, const std::string& path, const std::string& body);

}  // namespace carrel
