// The laboratory's families, each in a file of its own: dev_* for work on the tuner, final_* for the reported figure.
#pragma once

#include <memory>

#include "bench/tune/surface.h"

namespace lockstep::bench {

std::unique_ptr<Surface> make_dev_ddp(int instance);
std::unique_ptr<Surface> make_dev_zero(int instance);
std::unique_ptr<Surface> make_dev_anonymous(int instance);
std::unique_ptr<Surface> make_dev_words(int instance);
std::unique_ptr<Surface> make_dev_cloud(int instance);
std::unique_ptr<Surface> make_final_pipeline(int instance);
std::unique_ptr<Surface> make_final_compress(int instance);
std::unique_ptr<Surface> make_final_tiles(int instance);
std::unique_ptr<Surface> make_final_stream(int instance);
std::unique_ptr<Surface> make_final_moe(int instance);

}  // namespace lockstep::bench
