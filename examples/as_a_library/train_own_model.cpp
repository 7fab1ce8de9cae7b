// train_own_model: trains MeanMixer on one thread, under dp=2 x shard=2 and under pp=2, and prints the losses: the
// layouts change where things are computed, not what.
#include <cstdio>
#include <fstream>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/engine/train.h"
#include "lockstep/plan/layout.h"
#include "lockstep/spec/job.h"
#include "mean_mixer.h"

namespace {

constexpr const char* kText = "own_model.txt";
constexpr int kSequences = 8;  // of every step, whatever the layout

void write_text() {
  std::ofstream text(kText);
  for (int i = 0; i < 400; ++i) text << "The quick brown fox jumps over the lazy dog number " << i % 17 << ".\n";
}

lockstep::spec::Job job_of(const lockstep::plan::Layout& layout) {
  // The sizes are MeanMixer's; `arch` says what it resembles, for prices and plans.
  const std::string job = std::string(R"(
model: {arch: gpt, layers: 4, hidden: 64, heads: 4, ffn_hidden: 128, vocab: 256, max_sequence: 64, tied_embeddings: false}
cluster: 1x4xcpu
data: {kind: text, tokenizer: bytes, path: )") +
                          kText + R"(}
batch: {micro: 1, accumulation: 1, sequence_length: 64}
optimizer: {kind: adamw, learning_rate: 1e-2}
steps: 20
seed: 1
)";
  lockstep::spec::Job parsed = lockstep::spec::parse_job(job, "train_own_model");
  const std::int64_t own = kSequences / layout.data_ranks();  // sequences of one data rank in a step
  parsed.batch.micro = layout.pp > 1 ? 2 : own;
  parsed.batch.accumulation = own / parsed.batch.micro;
  return parsed;
}

void train(const std::string& name) {
  const lockstep::plan::Layout layout = lockstep::plan::parse_layout(name);
  lockstep::engine::TrainOptions options;
  options.make_model = make_mean_mixer;
  const lockstep::engine::TrainResult result = lockstep::engine::train(job_of(layout), layout, options);
  std::printf("%s losses:", name.c_str());
  for (const double loss : result.losses) std::printf(" %.6f", loss);
  std::printf("\n");
}

}  // namespace

int main() {
  try {
    write_text();
    for (const char* layout : {"dp=1", "dp=2,shard=2,zero=3", "pp=2"}) train(layout);
    return 0;
  } catch (const lockstep::UserError& error) {
    std::fprintf(stderr, "train_own_model: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
