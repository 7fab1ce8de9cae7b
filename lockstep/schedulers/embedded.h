// Files of this folder that the library carries.
#pragma once

#include <string_view>

namespace lockstep::schedulers {

std::string_view ray_driver();  // ray_driver.py

}  // namespace lockstep::schedulers
