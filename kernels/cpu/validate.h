// What a caller may pass: checked before anything is read or written through it.
#pragma once
#include "abi.h"

namespace tg {

// Whether a model's sizes fit together and are within the kernels' limits.
bool is_sound(const TgModel& model);

// TG_OK, or the first error of a step of at most `max_tokens` tokens.
int32_t find_fault(const TgModel& model, const TgStep& step, int32_t max_tokens);

}  // namespace tg
