"""Sends a run to Weights & Biases, MLflow or TensorBoard while it lasts.

    python3 -m lockstep.follow RUN --to wandb|mlflow|tensorboard [--once] [--project NAME] [--uri URI] [--folder FOLDER]
"""

import argparse
import sys

from . import exports


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python3 -m lockstep.follow", description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", default="last", help="id of the run, the beginning of one, or last")
    parser.add_argument("--to", required=True, choices=("wandb", "mlflow", "tensorboard"))
    parser.add_argument("--once", action="store_true", help="what is there now; else until the run is over")
    parser.add_argument("--home", help="home folder of lockstep; default: as the command has it")
    parser.add_argument("--project", default="lockstep", help="wandb's project, mlflow's experiment")
    parser.add_argument("--uri", help="mlflow's tracking URI; default: MLFLOW_TRACKING_URI")
    parser.add_argument("--folder", default="tensorboard", help="tensorboard's folder")
    parser.add_argument("--interval", type=float, default=5.0, metavar="SECONDS", help="between two looks")
    options = parser.parse_args(arguments)
    common = {"home": options.home, "follow": not options.once, "interval": options.interval}
    try:
        if options.to == "wandb":
            exports.export_to_wandb(options.run, project=options.project, **common)
        elif options.to == "mlflow":
            exports.export_to_mlflow(options.run, tracking_uri=options.uri, experiment=options.project, **common)
        else:
            exports.export_to_tensorboard(options.run, folder=options.folder, **common)
    except (ValueError, ImportError) as problem:
        print(f"lockstep: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
