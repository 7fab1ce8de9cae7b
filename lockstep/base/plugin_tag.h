// The strings that a plugin carries (plugin/register.h), by which it is known before it is opened (spec/plugin.h).
#pragma once

// Raised whenever the headers that a plugin includes change what they mean; a plugin of another number is refused.
#define LOCKSTEP_PLUGIN_INTERFACE 1
#define LOCKSTEP_PLUGIN_TAG "@lockstep-plugin:"
