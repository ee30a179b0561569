// The text front end that lies in a model's files, handed to engine/text. Pure; any thread.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "base/error.h"
#include "engine/model/gguf.h"
#include "engine/model/source.h"
#include "engine/text/tokenizer.h"

namespace carrel {

/// The tokenizer keys of a GGUF file as the text front end wants them.
GgufVocab gguf_vocab(const GgufTokenizer& keys);
/// `end_ids`: further end-of-generation tokens. kNotFound when the model has no tokenizer; errors of Tokenizer.
Result<std::shared_ptr<const Tokenizer>> tokenizer_of(const ModelSource& source, std::span<const int32_t> end_ids = {});

}  // namespace carrel
