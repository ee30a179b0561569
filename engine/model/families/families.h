// One function per family file: its line for the table in family.cpp.
#pragma once
#include "engine/model/family.h"

namespace carrel {

Family deepseek_v4_family();
Family llama_family();
Family mistral_family();
Family qwen3_family();
Family gemma3_family();
Family gpt_oss_family();
Family granite_family();
Family lfm2_family();
Family qwen3_next_family();

}  // namespace carrel
