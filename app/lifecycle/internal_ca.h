// The appliance's own certificate authority: a root made at first start, a leaf for every local name and address, renewed at two thirds of its
// life. Files in DIR: ca.pem (give it to clients), ca.key, server.pem (leaf and root), server.key; keys 0600.
//
// Threads: one caller at a time. Errors: kIo, kInternal (the TLS library refused), kCorrupt (files present but unusable).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/error.h"

namespace carrel {

struct TlsFiles {
  std::string ca_pem, cert_pem, key_pem;  // paths
  bool renewed = false;
  int64_t not_after_ms = 0;  // of the leaf
};

/// Makes what is missing, renews what is due or does not cover all of `names`. Existing valid files are left alone.
Result<TlsFiles> ensure_internal_ca(Env* env, const std::string& dir, const std::vector<std::string>& names);

/// A pair that the administrator gave: both readable, not swapped, belonging together, not expired. The error says which of these it is.
Status check_tls_pair(Env* env, const std::string& cert_path, const std::string& key_path);

/// localhost, the host's name, loopback and every address of every interface.
std::vector<std::string> local_names();

/// SHA-256 of the certificate's DER form, in hex: what an administrator compares by eye.
Result<std::string> certificate_fingerprint(Env* env, const std::string& pem_path);

}  // namespace carrel
