// The one way the HTTP library is included: its inline functions depend on these switches, so that server and client must have the same.
#pragma once
#define CPPHTTPLIB_OPENSSL_SUPPORT
#define CPPHTTPLIB_USE_POLL
#define CPPHTTPLIB_KEEPALIVE_MAX_COUNT 10000
#define CPPHTTPLIB_LISTEN_BACKLOG 512
#include <httplib.h>
