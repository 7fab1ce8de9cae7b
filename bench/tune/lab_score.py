"""Are the statements of a study true? Its JSON against the surface that it ran on. The words are those of
docs/reference/tuning-statistics.md.

- figure: the truth of the chosen configuration lies in [low, high] of `best`. Not asked where the machine drifts, since
  then the figure is about its speed at that time.
- gain: the true gain over the default lies in the interval of `gain_percent`. Asked where the space tells the defaults.
- top three: each knob of the chosen configuration is reverted to its default, everything else stays; what that loses is
  its true cost (0 at the default or inactive, 100 where it does not run). Without a tie `top` must be the three largest
  costs; knobs that cost exactly nothing need not be named. With one, `top` and `tied` are four knobs at most, the three
  are among them, all of `top` belong to the three, and the tied differ by less than a point. Asked as the gain is.
"""
import optuna_study


def active(knob, values, by_name):
    parent = knob.get("parent")
    if parent is None:
        return True
    return parent in values and by_name[parent]["levels"].index(values[parent]) in knob["parent_levels"]


def reverted(description, config, name):
    """The configuration with one knob at its default; knobs that become active get theirs."""
    by_name = {knob["name"]: knob for knob in description["knobs"]}
    wanted = {**config, name: by_name[name]["levels"][by_name[name]["default"]]}
    result = {}
    for knob in description["knobs"]:
        if active(knob, result, by_name):
            result[knob["name"]] = wanted.get(knob["name"], knob["levels"][knob["default"]])
    return result


def costs_of(description, config, truth_of):
    """Truly lost percent by knob."""
    best, costs = truth_of(config), {}
    for knob in description["knobs"]:
        name = knob["name"]
        at_default = name not in config or config[name] == knob["levels"][knob["default"]]
        costs[name] = 0.0 if at_default else 100 * (1 - truth_of(reverted(description, config, name)) / best)
    return costs


def top_is_right(costs, top, tied):
    ordered = sorted(costs.values(), reverse=True)
    third = ordered[min(2, len(ordered) - 1)]
    belongs = lambda knob: costs[knob] >= third  # noqa: E731
    wanted = sum(cost != 0 for cost in ordered[:3])
    if not all(map(belongs, top)):
        return False
    if not tied:
        return wanted <= len(top) <= 3
    spread = max(costs[knob] for knob in tied) - min(costs[knob] for knob in tied)
    return spread < 1 and len(top) + len(tied) <= 4 and len(top) + sum(map(belongs, tied)) >= min(3, wanted)


def within(interval, value):
    slack = 1e-9 * abs(value) + 1e-9
    return interval["low"] - slack <= value <= interval["high"] + slack


def score(program, fact, description, study):
    """{"figure", "gain", "top": true, false or None where it is not asked}."""
    best = study.get("best")
    if not best:
        return {"figure": None, "gain": None, "top": None}
    worker = optuna_study.Worker(program, fact["kind"], fact["instance"], 1, hide_names=description["hidden"])
    try:
        truth_of = lambda config: worker.evaluate(0, config)["truth"]  # noqa: E731
        truth = truth_of(best["config"])
        result = {"figure": None if fact["drifts"] else within(best, truth), "gain": None, "top": None}
        if not fact["tells_defaults"]:
            return result
        if study.get("gain_percent"):
            gain = 100 * (truth / truth_of(study["baseline"]["config"]) - 1)
            result["gain"] = within(study["gain_percent"], gain)
        if "top" in study:
            costs = costs_of(description, best["config"], truth_of)
            result["top"] = top_is_right(costs, study["top"], study["tied"])
        return result
    finally:
        worker.close()
