#include "fuzz_one.h"
#include "lockstep/planner/rows/predict_rows.h"

// Rows are also priced: `lockstep predict` promises a figure or a note for each.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  return fuzz::fuzz_one(data, size, [](std::string_view text) {
    const planner::PublishedTable table = planner::read_published_rows(text, "fuzz.csv");
    planner::RowPredictor predictor;
    for (const planner::PublishedRow& row : table.rows) {
      const planner::RowPrediction prediction = predictor.predict(row);
      fuzz::require(prediction.tokens_per_second_per_gpu || !prediction.note.empty(), "a figure or a note");
      if (const auto& speed = prediction.tokens_per_second_per_gpu) {
        fuzz::require(std::isfinite(speed->low) && std::isfinite(speed->high), "a figure is a number");
      }
    }
  });
}
