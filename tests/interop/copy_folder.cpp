// interop_copy_folder FROM TO MAX_SHARD_BYTES: a Hugging Face folder read by our readers and written by our writers,
// tensor by tensor, the configuration by way of spec::Model. What transformers thinks of it: compare_folders.py.
#include <cstdio>
#include <exception>
#include <string>

#include "lockstep/checkpoint/hf_folder.h"
#include "lockstep/checkpoint/hf_folder_writer.h"
#include "lockstep/spec/hf_config.h"

namespace {

using namespace lockstep;

void copy_folder(const std::string& from, const std::string& to, std::uint64_t max_shard_bytes) {
  const auto weights = checkpoint::WeightFiles::open(from);
  checkpoint::WeightFolderWriter writer(to, spec::to_hf_config(spec::read_hf_config(from)),
                                        {.max_shard_bytes = max_shard_bytes, .tokenizer_source = from});
  for (const std::string& name : weights.names()) {
    const checkpoint::TensorEntry& entry = weights.entry(name);
    const std::int64_t elements = c10::multiply_integers(entry.shape), half = elements / 2;
    torch::Tensor tensor = torch::empty({elements}, torch::TensorOptions().dtype(entry.dtype));
    // In two slices, as two ranks would.
    weights.read_range(name, 0, tensor.narrow(0, 0, half));
    weights.read_range(name, half, tensor.narrow(0, half, elements - half));
    writer.add(name, tensor.view(entry.shape));
  }
  writer.finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: interop_copy_folder FROM TO MAX_SHARD_BYTES\n");
    return 2;
  }
  try {
    copy_folder(argv[1], argv[2], std::stoull(argv[3]));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "interop_copy_folder: %s\n", error.what());
    return 1;
  }
}
