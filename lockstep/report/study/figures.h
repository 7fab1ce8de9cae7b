// Figures of studies in words, shared by the pages that show them.
#pragma once

#include <functional>
#include <string>

#include "lockstep/report/terminal/draw.h"
#include "lockstep/tune/study/conclusion.h"
#include "lockstep/tune/study/store_journal.h"

namespace lockstep::report {

bool is_search(tune::Purpose purpose);  // baseline, explore, replicate

std::string moment(double unix_time);  // "2026-11-15 03:15:00"
// "1.82 GPU-h", "14.2 GPU-s"; `device`: tune::device_of().
std::string gpu_time(double gpu_seconds, const std::string& device = "GPU");
std::string describe_evaluator(const tune::StudySetup& setup);  // "tune-cpu, by running it"
std::string describe_versions(const nlohmann::json& versions);  // "lockstep 0.5, nccl 2.30.7"
std::string cost_percent(const tune::Estimate& percent);        // "14.2%  (11.9 to 16.4, n=3)"
std::string top_text(const tune::Conclusion& conclusion);       // "a, b; then c or d (a tie)"
// "51.2 k tokens/s  95% 50.1 k tokens/s to 52.3 k tokens/s, 5 launches".
std::string estimate_text(const tune::Estimate& estimate, const std::function<std::string(double)>& show);
// "51.2k tokens/s", "12.4 GiB memory", "0.31 USD per million tokens": a figure of that objective.
std::string objective_text(const tune::Objective& objective, double value, const std::string& unit);
// Lines cut at the style's width, with an ellipsis.
std::string cut_lines(const std::string& text, const TerminalStyle& style);

}  // namespace lockstep::report
